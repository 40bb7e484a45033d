// Subject: the model on which the lab is calibrated, in versions that differ as a run's do, and the
// captures that a server of this project makes of it with a fault behind its claims. Everything is
// the real thing but the network: the rollout engine draws, the lab attributes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/faults/engine_faults.h"

namespace tandem::drift {

// Versions 0 .. kSubjectVersion; tokens are drawn under the last one.
inline constexpr int64_t kSubjectVersion = 5;

// Of one capture.
struct CaptureShape {
  int groups = 32, completions = 4, tokens = 20;
  int shortest_prompt = 8, longest_prompt = 16;
};

// Faults that the lab has no hypothesis for.
enum class Unmodelled {
  kNone,
  kRotaryBase,     // another base of the rotary frequencies
  kNormEpsilon,    // another epsilon in every norm
  kGarbledTensor,  // noise on one tensor that no version has
  kRoundedRecord,  // log-probs written with few decimals
};

struct Fault {
  rollout::EngineFaults dials;
  Unmodelled unmodelled = Unmodelled::kNone;
  double amount = 0;  // of the unmodelled one
};

class Subject {
 public:
  // `model`: a directory with config.json and tokenizer; its weights are written anew: normal, as
  // wide as gives next-token distributions of one to four nats, from `seed`. A version differs from
  // the one before by 2 % of every tensor's spread. Versions go to `directory`/captures/weights.
  //   errors of file_system.h, ReadModelConfig
  static absl::StatusOr<std::unique_ptr<Subject>> Make(const std::string& model,
                                                       const std::string& directory, uint64_t seed);

  // A server with that fault, every version pushed to it. One thread of its own.
  absl::StatusOr<std::unique_ptr<rollout::Engine>> Serve(const Fault& fault) const;

  // Random prompts, and what the server draws after them; claims are those of a healthy one. No
  // trainer has seen it.
  absl::StatusOr<offpolicy::Capture> Draw(rollout::Engine& server, const Fault& fault,
                                          const CaptureShape& shape, uint64_t seed) const;

  const std::string& model() const { return model_; }
  // Where a capture of it would lie: what the paths in it are relative to.
  std::string capture_path() const { return directory_ + "/captures/drawn"; }
  const ModelConfig& config() const { return config_; }

 private:
  Subject(std::string model, std::string directory, ModelConfig config)
      : model_(std::move(model)), directory_(std::move(directory)), config_(std::move(config)) {}

  absl::StatusOr<std::string> ModelFor(const Fault& fault) const;

  const std::string model_, directory_;
  const ModelConfig config_;
  std::vector<std::vector<HostTensor>> versions_;  // fp32
  std::vector<offpolicy::CapturedWeights> weights_;
};

}  // namespace tandem::drift
