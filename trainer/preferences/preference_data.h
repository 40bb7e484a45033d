// PreferenceData: a file of preference data as token ids, read once, and its held-out part.
// preference_rows.h has the forms of a row.
//
// The prompt goes through the model's chat template if there is one (a plain text as one message of
// the user), and a completion is the ids of its text and the end token. They are encoded apart, as
// a rollout has them: the prompt is given, and the completion is drawn token by token. TRL renders
// the whole conversation instead, so the template's line break after its end token is a token of
// the completion there, and leaves rows of plain text without the template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::trainer {

// What happens to a row whose prompt and longer completion have more than max_tokens tokens.
//   kRefuse    an error
//   kTruncate  completions lose their end, as with TRL's keep_start; a row whose prompt alone has
//              max_tokens, or whose completions are equal now, is dropped
//   kDrop      the row is dropped
enum class LongRows { kRefuse, kTruncate, kDrop };

// What happens to a row from which nothing can be learned: FAILED_PRECONDITION of
// ParsePreferenceRow.
enum class UnusableRows { kRefuse, kDrop };

struct PreferenceDataOptions {
  int64_t max_tokens = 0;  // of prompt and completion; 0: the model's context
  LongRows long_rows = LongRows::kRefuse;
  UnusableRows unusable_rows = UnusableRows::kRefuse;
  double held_out = 0;  // share of the prompts
};
void BindOptions(OptionBinder& binder, PreferenceDataOptions& options);

struct PreferencePair {
  std::vector<int32_t> prompt, chosen, rejected;  // each with at least one token
  std::optional<double> margin;                   // in all pairs of a file or in none
  std::optional<double> score_chosen, score_rejected;
  int64_t row = 0;  // line of the file, from 1
};

struct LabelledCompletion {
  std::vector<int32_t> prompt, completion;
  bool desirable = false;
  int64_t row = 0;
};

// What became of the rows of a file.
struct PreferenceRowCounts {
  int64_t rows = 0;
  int64_t truncated = 0;  // kept, without the end of a completion
  int64_t dropped_long = 0;
  int64_t dropped_unusable = 0;
  int64_t scored_against = 0;  // kept, although score_chosen is not over score_rejected
};

// Either pairs or labelled completions, in the order of the file.
struct PreferenceData {
  std::vector<PreferencePair> pairs;
  std::vector<LabelledCompletion> labelled;
  PreferenceRowCounts counts;

  bool has_margins() const { return !pairs.empty() && pairs.front().margin.has_value(); }
};

// Reads the data set at `path` (RowReader). `end_token` ends every completion whose text does not end
// with it, and `context_tokens` is the model's context.
//   errors of RowReader
//   INVALID_ARGUMENT  the row's place and what was expected: a row of another form, text that is not UTF-8 or that the template refuses, pairs among
//                     labelled completions, a margin in some rows only, a row that is unusable or
//                     too long where these are refused; a file without a row that can be used, with
//                     the counts; max_tokens over the context
//   UNIMPLEMENTED     messages for a model without a chat template
absl::StatusOr<PreferenceData> ReadPreferenceData(const std::string& path,
                                                  const PreferenceDataOptions& options,
                                                  const Tokenizer& tokenizer, int32_t end_token,
                                                  int64_t context_tokens);

// For each row, by the hash of its prompt's ids, whether it is held out: round(share * number of
// prompts) prompts are, at least one and all but one if share is over 0 and there are two. Which
// ones depends on the hashes and `seed` alone, not on their order.
std::vector<bool> ChooseHeldOut(const std::vector<uint64_t>& prompt_hashes, double share,
                                uint64_t seed);

// Moves the rows of round(share * number of prompts) prompts out of `data`, at least one and all
// but one if share is over 0 and there are two prompts. All rows of a prompt go together, so that
// nothing held out is trained on. Which prompts depends on their token ids and `seed` alone, not on
// the order of rows. The counts stay.
PreferenceData TakeHeldOut(PreferenceData& data, double share, uint64_t seed);

// The completions of pairs with labels, for kto: all chosen ones, desirable, then all rejected
// ones.
std::vector<LabelledCompletion> Unpair(const std::vector<PreferencePair>& pairs);

}  // namespace tandem::trainer
