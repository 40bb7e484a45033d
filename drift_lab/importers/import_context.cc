#include "drift_lab/importers/import_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "drift_lab/importers/claims.h"
#include "drift_lab/importers/item_fields.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {

absl::Status ImportContext::Add(RecordRow row) {
  if (!row.facts.step) row.facts.step = step_;
  return builder_.AddRow(row);
}

void ImportContext::Note(std::string_view sentence) {
  const auto found =
      std::ranges::find_if(notes_, [&](const auto& note) { return note.first == sentence; });
  if (found == notes_.end()) {
    notes_.emplace_back(std::string(sentence), 1);
  } else {
    ++found->second;
  }
}

void ImportContext::Claim(std::string_view key, std::string_view value) {
  if (value.empty()) return;
  const auto [at, is_first] = claims_.emplace(std::string(key), std::string(value));
  if (!is_first && at->second != value) at->second.clear();
}

void ImportContext::ClaimSampling(const nlohmann::json& parameters) {
  for (const char* name : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty",
                           "frequency_penalty", "presence_penalty", "min_tokens"}) {
    const nlohmann::json* value = FindField(parameters, name);
    if (value != nullptr && value->is_number()) {
      Claim(absl::StrCat("behaviour.", name), value->dump());
    }
  }
}

Records ImportContext::Finish() {
  Records records = builder_.Finish();
  for (const auto& [key, value] : claims_) {
    if (HasClaim(records.header, key)) continue;  // the user's claims stand
    if (value.empty()) {
      Note(absl::StrCat(key, " differs from row to row, so the header does not claim one"));
    } else if (const absl::Status set = SetClaim(key, value, records.header); !set.ok()) {
      Note(absl::StrCat("not claimed: ", std::string(set.message())));
    }
  }
  return records;
}

std::vector<std::string> ImportContext::Notes() const {
  std::vector<std::string> lines;
  for (const auto& [sentence, count] : notes_) {
    lines.push_back(count == 1 ? sentence : absl::StrCat(sentence, " (", count, " times)"));
  }
  return lines;
}

}  // namespace tandem::drift
