// RunFile: the YAML file of a run, with sections `launch`, `server`, `trainer` and `drift.inject`
// (faults of the server), each bound by its owner. `tandem run`, `demo` and `render` use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/run_file/launch_options.h"
#include "common/hub/model_options.h"
#include "common/options/options.h"
#include "rollout_server/server_options.h"
#include "trainer/trainer_options.h"

namespace tandem::cli {

class RunFile {
 public:
  // Reads `path` and then applies the KEY=VALUE overrides in order. A server without a model gets
  // the trainer's.
  //   INVALID_ARGUMENT, NOT_FOUND  as OptionBinder::LoadFile and Set
  //   INVALID_ARGUMENT             no model is named, or options contradict each other
  static absl::StatusOr<std::unique_ptr<RunFile>> Load(const std::string& path,
                                                       const std::vector<std::string>& sets);

  // The same of several texts of YAML, a later one over an earlier one. Messages call each by its
  // origin.
  struct Text {
    std::string yaml, origin;
  };
  static absl::StatusOr<std::unique_ptr<RunFile>> LoadTexts(const std::vector<Text>& texts,
                                                            const std::vector<std::string>& sets);

  const LaunchOptions& launch() const { return launch_; }
  const rollout::ServerOptions& server() const { return server_; }
  const trainer::TrainerOptions& trainer() const { return trainer_; }
  std::string run_directory() const { return trainer_.out + "/" + trainer_.run_name; }  // OUT/NAME
  // Must be readable where processes start. Without models that are named by their names on the
  // Hub, which each machine finds in its own cache.
  std::vector<std::string> input_paths() const;

  // Pins the models that are named by names (common/hub/model_options.h). `before`: the config.yaml
  // of the run that goes on; empty for a new one. Errors are those of hub::PinModels.
  absl::Status PinModels(const std::string& before, std::vector<std::string>* notes);

  // The directories of this machine that a model's option stands for.
  struct FoundModel {
    std::string option;  // "trainer.model"
    std::string value;   // as in the file
    std::string path;    // empty where `status` is an error
    absl::Status status;
  };
  std::vector<FoundModel> FindModels() const;

  // Sets the compute threads of a rank and of a server, unless the file sets them.
  void UseThreads(int64_t rank_threads, int64_t server_threads);

  std::string ToYaml() const;  // resolved

  // "trainer.steps: 3  (default 100)" for every option that does not have its default value.
  std::vector<std::string> Changes() const;

  // Every option with its default, as the page docs/configuration.md.
  static std::string Reference();

 private:
  RunFile();
  std::vector<hub::ModelOption> model_options();

  LaunchOptions launch_;
  rollout::ServerOptions server_;
  trainer::TrainerOptions trainer_;
  OptionBinder binder_;  // of the options above
};

}  // namespace tandem::cli
