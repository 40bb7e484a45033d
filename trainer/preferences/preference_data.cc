#include "trainer/preferences/preference_data.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/tables/row_reader.h"
#include "common/weights/digest.h"
#include "trainer/preferences/preference_rows.h"

namespace tandem::trainer {
namespace {

using Ids = std::vector<int32_t>;

absl::Status At(const std::string& place, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(place, ": ", status.message()));
}

// Reads the rows of one file into `data`.
class PreferenceReader {
 public:
  PreferenceReader(const PreferenceDataOptions& options, const Tokenizer& tokenizer,
                   int32_t end_token, int64_t max_tokens)
      : options_(options), tokenizer_(tokenizer), end_token_(end_token), max_tokens_(max_tokens) {}

  absl::Status AddRow(std::string_view json_text, const std::string& place, int64_t row_number) {
    ++data_.counts.rows;
    absl::StatusOr<PreferenceRow> row = ParsePreferenceRow(json_text, place);
    if (absl::IsFailedPrecondition(row.status())) return Unusable(row.status());
    if (!row.ok()) return row.status();
    TANDEM_RETURN_IF_ERROR(CheckSameForm(*row, place));
    absl::StatusOr<Ids> prompt = EncodePrompt(*row);
    if (!prompt.ok()) return At(place, prompt.status());
    return row->is_pair() ? AddPair(*row, *std::move(prompt), place, row_number)
                          : AddLabelled(*row, *std::move(prompt), place, row_number);
  }

  PreferenceData Take() { return std::move(data_); }

 private:
  absl::Status Unusable(const absl::Status& status) {
    if (options_.unusable_rows == UnusableRows::kRefuse) {
      return InvalidArgument(status.message(),
                             "; remove the row, or set unusable_rows to drop it and its like");
    }
    ++data_.counts.dropped_unusable;
    return absl::OkStatus();
  }

  absl::Status CheckSameForm(const PreferenceRow& row, const std::string& place) {
    if (first_place_.empty()) {
      first_place_ = place;
      first_is_pair_ = row.is_pair();
      first_has_margin_ = row.margin.has_value();
    }
    const char* const forms[] = {"a completion with a label", "a pair"};
    if (row.is_pair() != first_is_pair_) {
      return InvalidArgument(place, ": ", forms[row.is_pair()], ", but ", first_place_, " is ",
                             forms[first_is_pair_], "; a file has rows of one form");
    }
    if (row.margin.has_value() != first_has_margin_) {
      return InvalidArgument(place, ": ", first_has_margin_ ? "no \"margin\"" : "a \"margin\"",
                             ", unlike ", first_place_, "; all rows of a file have one, or none");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Ids> EncodePrompt(const PreferenceRow& row) const {
    std::string text = row.prompt_text;
    if (tokenizer_.has_chat_template() || text.empty()) {
      std::string messages = row.prompt_messages;
      if (messages.empty()) {
        messages = nlohmann::json::array({{{"role", "user"}, {"content", text}}}).dump();
      }
      TANDEM_ASSIGN_OR_RETURN(text,
                              tokenizer_.RenderChat(messages, /*add_generation_prompt=*/true));
    }
    TANDEM_ASSIGN_OR_RETURN(Ids ids, tokenizer_.Encode(text));
    if (ids.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
    return ids;
  }

  absl::StatusOr<Ids> EncodeCompletion(const PreferenceRow& row, const std::string& text) const {
    // Without a template, the reply follows "\n\nAssistant:" after a space.
    const bool spaced = row.is_dialogue() && !tokenizer_.has_chat_template();
    TANDEM_ASSIGN_OR_RETURN(Ids ids, tokenizer_.Encode(spaced ? absl::StrCat(" ", text) : text));
    if (ids.empty() || ids.back() != end_token_) ids.push_back(end_token_);
    return ids;
  }

  // Whether the row is kept; cuts completions if they are to be truncated.
  absl::StatusOr<bool> Fit(const Ids& prompt, std::vector<Ids*> completions,
                           const std::string& place) {
    size_t longest = 0;
    for (const Ids* ids : completions) longest = std::max(longest, ids->size());
    const auto limit = static_cast<size_t>(max_tokens_);
    if (prompt.size() + longest <= limit) return true;
    if (options_.long_rows == LongRows::kRefuse) {
      return InvalidArgument(place, ": the prompt has ", prompt.size(),
                             " tokens and the longest completion ", longest, ", limit ", limit,
                             "; remove the row, or set long_rows to truncate or drop");
    }
    if (options_.long_rows == LongRows::kDrop || prompt.size() >= limit) {
      ++data_.counts.dropped_long;
      return false;
    }
    for (Ids* ids : completions) ids->resize(std::min(ids->size(), limit - prompt.size()));
    if (completions.size() == 2 && *completions[0] == *completions[1]) {
      ++data_.counts.dropped_long;
      return false;
    }
    ++data_.counts.truncated;
    return true;
  }

  absl::Status AddPair(const PreferenceRow& row, Ids prompt, const std::string& place,
                       int64_t row_number) {
    absl::StatusOr<Ids> chosen = EncodeCompletion(row, row.chosen);
    if (!chosen.ok()) return At(place, chosen.status());
    absl::StatusOr<Ids> rejected = EncodeCompletion(row, row.rejected);
    if (!rejected.ok()) return At(place, rejected.status());
    if (*chosen == *rejected) {
      return Unusable(absl::FailedPreconditionError(
          absl::StrCat(place, ": \"chosen\" and \"rejected\" have the same token ids")));
    }
    TANDEM_ASSIGN_OR_RETURN(const bool kept, Fit(prompt, {&*chosen, &*rejected}, place));
    if (!kept) return absl::OkStatus();
    if (row.score_chosen.has_value() && *row.score_chosen <= *row.score_rejected) {
      ++data_.counts.scored_against;
    }
    data_.pairs.push_back({std::move(prompt), *std::move(chosen), *std::move(rejected), row.margin,
                           row.score_chosen, row.score_rejected, row_number});
    return absl::OkStatus();
  }

  absl::Status AddLabelled(const PreferenceRow& row, Ids prompt, const std::string& place,
                           int64_t row_number) {
    absl::StatusOr<Ids> completion = EncodeCompletion(row, row.completion);
    if (!completion.ok()) return At(place, completion.status());
    TANDEM_ASSIGN_OR_RETURN(const bool kept, Fit(prompt, {&*completion}, place));
    if (!kept) return absl::OkStatus();
    data_.labelled.push_back(
        {std::move(prompt), *std::move(completion), *row.desirable, row_number});
    return absl::OkStatus();
  }

  const PreferenceDataOptions& options_;
  const Tokenizer& tokenizer_;
  const int32_t end_token_;
  const int64_t max_tokens_;
  std::string first_place_;  // of the row that the others must be like
  bool first_is_pair_ = false, first_has_margin_ = false;
  PreferenceData data_;
};

// Moves the rows that are held out from `rows` to the result.
template <typename Row>
std::vector<Row> MoveHeldOut(std::vector<Row>& rows, double share, uint64_t seed) {
  std::vector<uint64_t> prompts;
  for (const Row& row : rows) prompts.push_back(HashTokenIds(row.prompt));
  const std::vector<bool> held_out = ChooseHeldOut(prompts, share, seed);
  std::vector<Row> taken, kept;
  for (size_t i = 0; i < rows.size(); ++i) {
    (held_out[i] ? taken : kept).push_back(std::move(rows[i]));
  }
  rows = std::move(kept);
  return taken;
}

}  // namespace

void BindOptions(OptionBinder& binder, PreferenceDataOptions& options) {
  binder.Integer("max_row_tokens", &options.max_tokens, {.min = 0}, "tokens",
                 "longest prompt with a completion; 0: the model's context");
  binder.Choice(
      "long_rows", &options.long_rows,
      {{"refuse", LongRows::kRefuse}, {"truncate", LongRows::kTruncate}, {"drop", LongRows::kDrop}},
      "a row over max_row_tokens ends the run, loses the end of its completions, or is left "
      "out and counted");
  binder.Choice("unusable_rows", &options.unusable_rows,
                {{"refuse", UnusableRows::kRefuse}, {"drop", UnusableRows::kDrop}},
                "a row with equal or blank sides, or sides that answer different prompts, ends the "
                "run, or is left out and counted");
  binder.Number("held_out", &options.held_out, {.min = 0, .max = 1, .exclusive_max = true}, "",
                "share of the prompts that are held out, by the seed");
}

absl::StatusOr<PreferenceData> ReadPreferenceData(const std::string& path,
                                                  const PreferenceDataOptions& options,
                                                  const Tokenizer& tokenizer, int32_t end_token,
                                                  int64_t context_tokens) {
  if (options.max_tokens > context_tokens) {
    return InvalidArgument("max_row_tokens is ", options.max_tokens,
                           ", over the model's context of ", context_tokens, " tokens");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto rows, RowReader::Open(path));
  PreferenceReader reader(options, tokenizer, end_token,
                          options.max_tokens > 0 ? options.max_tokens : context_tokens);
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<TableRow> row, rows->Next());
    if (!row.has_value()) break;
    TANDEM_RETURN_IF_ERROR(reader.AddRow(row->json, row->place, row->number + 1));
  }
  PreferenceData data = reader.Take();
  if (data.pairs.empty() && data.labelled.empty()) {
    return InvalidArgument(path, ": no row that can be used (", data.counts.rows, " rows, ",
                           data.counts.dropped_long, " too long, ", data.counts.dropped_unusable,
                           " with equal or blank sides or different prompts)");
  }
  return data;
}

std::vector<bool> ChooseHeldOut(const std::vector<uint64_t>& prompt_hashes, double share,
                                uint64_t seed) {
  std::map<uint64_t, bool> chosen;  // by the hash of a prompt
  for (const uint64_t hash : prompt_hashes) chosen[hash] = false;
  std::vector<std::pair<uint64_t, uint64_t>> draws;
  for (const auto& [hash, is_chosen] : chosen) draws.emplace_back(StableHash({seed, hash}), hash);
  std::ranges::sort(draws);
  int64_t count = std::llround(share * static_cast<double>(draws.size()));
  if (share > 0 && draws.size() >= 2) {
    count = std::clamp<int64_t>(count, 1, static_cast<int64_t>(draws.size()) - 1);
  }
  for (int64_t i = 0; i < count; ++i) chosen[draws[static_cast<size_t>(i)].second] = true;
  std::vector<bool> held_out;
  for (const uint64_t hash : prompt_hashes) held_out.push_back(chosen[hash]);
  return held_out;
}

// A file has rows of one kind, so the prompts of one vector are those of the file.
PreferenceData TakeHeldOut(PreferenceData& data, double share, uint64_t seed) {
  return {.pairs = MoveHeldOut(data.pairs, share, seed),
          .labelled = MoveHeldOut(data.labelled, share, seed)};
}

std::vector<LabelledCompletion> Unpair(const std::vector<PreferencePair>& pairs) {
  std::vector<LabelledCompletion> completions;
  for (const bool desirable : {true, false}) {
    for (const PreferencePair& pair : pairs) {
      completions.push_back(
          {pair.prompt, desirable ? pair.chosen : pair.rejected, desirable, pair.row});
    }
  }
  return completions;
}

}  // namespace tandem::trainer
