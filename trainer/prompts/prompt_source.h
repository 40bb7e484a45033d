// PromptSource: prompts of one data set or of a mixture of several, tokenised once, in an order that
// is a function of (seed, place) alone (start of stage 1). The cursor is a plain count, so a resumed
// run goes on with the same prompts. trainer/data says which rows are read, and how.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/experience.pb.h"
#include "trainer/data/data_options.h"
#include "trainer/data/mixture.h"
#include "trainer/prompts/prompt_reader.h"

namespace tandem::trainer {

// A permutation of 0..n-1 that depends on (seed, epoch) alone, the same on every machine.
std::vector<int64_t> EpochOrder(int64_t n, uint64_t seed, int64_t epoch);

// Immutable but for cached orders. Thread-compatible.
class PromptSource {
 public:
  // Reads and tokenises the data set at `path` (FindDatasetFiles), with options.split and
  // options.subset. `tokenizer` is used during the call only.
  //   errors of ReadPromptsOf
  static absl::StatusOr<std::unique_ptr<PromptSource>> Open(const std::string& path,
                                                            const DataOptions& options,
                                                            uint64_t seed,
                                                            const Tokenizer& tokenizer);

  // Where the prompt at a cursor is in prompts(), and how often its data set was gone through before.
  struct Place {
    int64_t position = 0;
    int64_t epoch = 0;
  };
  // The place at `cursor` (from 0, any size) of the endless sequence of epochs. In a mixture each
  // data set has epochs of its own.
  Place PlaceAt(int64_t cursor);
  // The prompt at a position, marked as of `epoch`.
  const experience::v1::Prompt& Row(int64_t position, int64_t epoch);
  const experience::v1::Prompt& At(int64_t cursor) {
    const Place place = PlaceAt(cursor);
    return Row(place.position, place.epoch);
  }

  // In the order of the files, for evaluation.
  const std::vector<experience::v1::Prompt>& prompts() const { return prompts_; }
  int64_t num_dropped() const { return num_dropped_; }  // over length

  // A hash of the token ids of all prompts, of whether they are shuffled, and of how data sets are
  // mixed: equal digests and seeds have the same prompt at every cursor.
  std::string digest() const;

 private:
  friend class RunPromptReader;

  // Prompts of one data set: `size` of prompts_ from `first` on.
  struct Part {
    int64_t first = 0, size = 0;
    uint64_t seed = 0;
    int64_t order_epoch = -1;  // of `order`
    std::vector<int64_t> order;
  };

  PromptSource(uint64_t seed, bool shuffle) : seed_(seed), shuffle_(shuffle) {}
  void AddPart(std::vector<experience::v1::Prompt> prompts);
  Place PlaceIn(Part& part, int64_t count) const;

  const uint64_t seed_;
  const bool shuffle_;
  std::vector<experience::v1::Prompt> prompts_;
  int64_t num_dropped_ = 0;
  std::vector<Part> parts_;
  std::optional<Mixture> mixture_;  // of several parts
};

// The prompts of a run: those to train on and the held-out ones, checked against the model.

struct RunPrompts {
  std::unique_ptr<PromptSource> train;
  std::unique_ptr<PromptSource> eval;  // null without data.eval and data.eval_share
};

// The longest completion, and the option that says so.
struct LongestTokens {
  int64_t tokens = 0;
  std::string option = "sampling.max_new_tokens";
};

// Reads and tokenises data.train or data.mixture, and data.eval. `tokenizer` is used during the call
// only.
//   errors of CheckOptions and ReadPromptsOf
//   INVALID_ARGUMENT  a prompt to train on and the longest completion are over the model's context
//                     (the place of the longest); data.eval_share holds out no prompt
absl::StatusOr<RunPrompts> OpenRunPrompts(const DataOptions& data, int64_t run_seed,
                                          const LongestTokens& longest, const ModelConfig& model,
                                          const Tokenizer& tokenizer);

}  // namespace tandem::trainer
