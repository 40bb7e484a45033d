// RunFile: the one YAML file of a run: sections `launch`, `server`, `trainer` and `drift.inject`
// (faults of the server), each bound by its owner. `tandem run`, `demo` and `render` use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/run_file/launch_options.h"
#include "rollout_server/server_options.h"
#include "trainer/trainer_options.h"

namespace tandem::cli {

class RunFile {
 public:
  // Reads `path`, then the KEY=VALUE overrides in order. A server without a model gets the
  // trainer's. Errors: those of OptionBinder; INVALID_ARGUMENT when no model is named.
  static absl::StatusOr<std::unique_ptr<RunFile>> Load(const std::string& path,
                                                       const std::vector<std::string>& sets);
  ~RunFile();

  const LaunchOptions& launch() const;
  const rollout::ServerOptions& server() const;
  const trainer::TrainerOptions& trainer() const;
  std::string server_model() const;
  std::string trainer_model() const;
  std::string run_directory() const;  // OUT/NAME
  int64_t num_steps() const;
  std::vector<std::string> input_paths() const;  // what must be readable where processes start

  // Compute threads of a rank and of a server, where the file leaves them to the machine.
  void UseThreads(int64_t of_rank, int64_t of_server);

  std::string ToYaml() const;  // resolved

  // "trainer.steps: 3  (default 100)" for every knob that is not at its default.
  std::vector<std::string> Changes() const;

  // Every knob with its default, as the page docs/configuration.md.
  static std::string Reference();

 private:
  struct Impl;
  explicit RunFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::cli
