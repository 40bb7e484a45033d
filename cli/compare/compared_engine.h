// ComparedEngine: an engine that draws tokens and scores them, whatever it is written in. `tandem
// drift compare` has two: Tandem's own in this process (tandem_engine.h) and a program behind the
// protocol of docs/engines.md (engine_process.h). Per-token vectors have an element for each drawn
// token; log-probs and entropies are in nats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::cli {

struct EngineInfo {
  std::string engine, version, dtype;  // as in the header of a records file
  bool can_load_weights = false;
};

struct EngineSampling {
  int32_t num_completions = 1;  // of each prompt
  double temperature = 1;       // above 0
  int32_t top_k = 0;            // 0: off
  double top_p = 1;             // 1: off
  int32_t max_new_tokens = 64;
  uint64_t seed = 1;
  bool raw = false;  // the log-probs wanted: of the untouched logits, else of what was drawn from
};

struct DrawnCompletion {
  int64_t prompt = 0;  // its number in the call
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<float> raw_logprobs, entropies;  // empty: the engine does not give them
  std::string finish_reason;                   // "stop", "length"
};

struct RowToScore {
  std::vector<int32_t> token_ids;  // [T]
  int64_t prompt_length = 0;       // in [1, T)
};

struct RowScore {
  std::vector<float> logprobs;   // [T - prompt_length]
  std::vector<float> entropies;  // the same, or empty
};

// Use from one thread. After INTERNAL or UNAVAILABLE the engine must not be used any more.
class ComparedEngine {
 public:
  virtual ~ComparedEngine() = default;

  virtual EngineInfo Info() const = 0;

  // The completions of all prompts, in the order of prompts.
  //   INVALID_ARGUMENT  a prompt or a setting that the engine does not take
  //   UNIMPLEMENTED     the engine cannot do this
  //   INTERNAL          it tried and failed
  //   UNAVAILABLE       it ended (with exit code 9)
  virtual absl::StatusOr<std::vector<DrawnCompletion>> Sample(
      const std::vector<std::vector<int32_t>>& prompts, const EngineSampling& sampling) = 0;

  // The log-probs of each row's finished sequence; logits are divided by `temperature`. Errors as
  // Sample.
  virtual absl::StatusOr<std::vector<RowScore>> Score(const std::vector<RowToScore>& rows,
                                                      double temperature) = 0;

  // Samples and scores with the weights of `directory` from now on. Errors as Sample.
  virtual absl::Status LoadWeights(const std::string& directory) = 0;
};

}  // namespace tandem::cli
