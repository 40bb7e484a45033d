// Subject: the model on which the lab is calibrated, in versions that differ as those of a run do,
// and captures of a server that runs it with an injected fault. Only the network is missing: the
// real rollout engine samples, and the real lab attributes.
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

// The subject has versions 0 .. kSubjectVersion; tokens are sampled under the last one.
inline constexpr int64_t kSubjectVersion = 5;

// The size of one capture.
struct CaptureShape {
  int groups = 32, completions = 4, tokens = 20;
  int shortest_prompt = 8, longest_prompt = 16;
};

// Faults for which the lab has no hypothesis.
enum class Unmodelled {
  kNone,
  kRotaryBase,     // another base of the rotary frequencies
  kNormEpsilon,    // another epsilon in every norm
  kGarbledTensor,  // noise on one tensor
  kRoundedRecord,  // log-probs recorded with few decimals
};

struct Fault {
  rollout::EngineFaults engine;
  Unmodelled unmodelled = Unmodelled::kNone;
  double amount = 0;  // of the unmodelled one
};

class Subject {
 public:
  // `model` is a directory with config.json and tokenizer, in which new weights are written: normal
  // numbers from `seed`, of a size that gives next-token distributions with one to four nats of
  // entropy. A version differs from the one before by 2 % of every tensor's standard deviation.
  // Versions are written to `directory`/captures/weights.
  //   any error of file_system.h and ReadModelConfig
  static absl::StatusOr<std::unique_ptr<Subject>> Make(const std::string& model,
                                                       const std::string& directory, uint64_t seed);

  // A server with that fault, to which every version was pushed. It has one thread.
  absl::StatusOr<std::unique_ptr<rollout::Engine>> Serve(const Fault& fault) const;

  // Samples completions of random prompts. The capture claims a healthy server and has no trainer's
  // log-probs.
  absl::StatusOr<offpolicy::Capture> Sample(rollout::Engine& server, const Fault& fault,
                                            const CaptureShape& shape, uint64_t seed) const;

  const std::string& model() const { return model_; }
  // The directory to which the paths in a capture are relative.
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
