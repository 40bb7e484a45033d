// PromptSource: prompts of a JSON lines file, tokenised once, in an order that is a function of
// (seed, epoch) alone (start of stage 1). The cursor is a plain count, so a resumed run goes on
// with the same prompts. Rows it reads, by their keys:
//   {"prompt": "text", "answer": ..}            {"messages": [{"role", "content"}..], "answer": ..}
//   {"question": "text", "answer": ".. #### 7"}  (GSM8K)
//   {"prompt": [{"role", "content"}..], "reward_model": {"ground_truth": ..}, ..}  (verl)
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/options/options.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/experience.pb.h"

namespace tandem::trainer {

enum class OverLength { kRefuse, kDrop };

struct DataOptions {
  std::string train;
  std::string eval;  // empty: no evaluation
  bool chat = true;
  std::string suffix;  // added to `prompt` and `question` texts
  int64_t max_prompt_tokens = 1024;
  OverLength over_length = OverLength::kRefuse;
  bool shuffle = true;
};
void BindOptions(OptionBinder& binder, DataOptions& options);

// One row, before the tokenizer.
struct PromptRow {
  std::string text;           // raw text, or ...
  std::string messages_json;  // ... messages for the chat template; exactly one is not empty
  std::string answer;
};

// Parses one line; `place` ("FILE:LINE") opens error messages.
//   INVALID_ARGUMENT  not a JSON object, none of the forms above, or a field of the wrong type;
//   says
//                     what was expected
absl::StatusOr<PromptRow> ParsePromptRow(std::string_view line, const std::string& place,
                                         const std::string& suffix);

// A permutation of 0..n-1 that depends on (seed, epoch) alone, the same on every machine.
std::vector<int64_t> EpochOrder(int64_t n, uint64_t seed, int64_t epoch);

// Immutable but for the cached order. Thread-compatible.
class PromptSource {
 public:
  // Reads and tokenises `path`. `tokenizer` is used during the call only.
  //   NOT_FOUND            no such file
  //   INVALID_ARGUMENT     a malformed line (FILE:LINE and what was expected); no prompt at all; a
  //                        prompt over max_prompt_tokens with over_length refuse
  //   UNIMPLEMENTED  chat is on and the model has no chat template
  static absl::StatusOr<std::unique_ptr<PromptSource>> Open(const std::string& path,
                                                            const DataOptions& options,
                                                            uint64_t seed,
                                                            const Tokenizer& tokenizer);

  // The position in prompts() of the prompt at `cursor` (from 0, any size) of the endless sequence
  // of epochs.
  int64_t PositionAt(int64_t cursor);
  // The prompt at a position, marked as of `epoch`.
  const experience::v1::Prompt& Row(int64_t position, int64_t epoch);
  const experience::v1::Prompt& At(int64_t cursor) {
    return Row(PositionAt(cursor), cursor / std::ssize(prompts_));
  }

  // In file order, for evaluation.
  const std::vector<experience::v1::Prompt>& prompts() const { return prompts_; }
  int64_t num_dropped() const { return num_dropped_; }  // over length

  // Of the token ids of all prompts, and of whether they are shuffled: equal digests and seeds have
  // the same prompt at every cursor.
  std::string digest() const;

 private:
  PromptSource(uint64_t seed, bool shuffle) : seed_(seed), shuffle_(shuffle) {}

  const uint64_t seed_;
  const bool shuffle_;
  std::vector<experience::v1::Prompt> prompts_;
  int64_t num_dropped_ = 0;
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
};

// The prompts of a run: those to train on and the held-out ones, checked against the model.

struct RunPrompts {
  std::unique_ptr<PromptSource> train;
  std::unique_ptr<PromptSource> eval;  // null without data.eval
};

// Reads and tokenises data.train and data.eval. `tokenizer` is used during the call only.
//   errors of PromptSource::Open
//   INVALID_ARGUMENT  a prompt to train on and sampling.max_new_tokens are over the model's context
//                     (FILE:LINE of the longest)
absl::StatusOr<RunPrompts> OpenRunPrompts(const DataOptions& data, int64_t run_seed,
                                          int64_t max_new_tokens, const ModelConfig& model,
                                          const Tokenizer& tokenizer);

}  // namespace tandem::trainer
