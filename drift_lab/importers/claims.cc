#include "drift_lab/importers/claims.h"

#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/options/nearest_name.h"

namespace tandem::drift {
namespace {

// A field of the header, by one of three types; the other two are null.
struct ClaimField {
  std::string* text = nullptr;
  std::optional<double>* number = nullptr;
  std::optional<int64_t>* whole = nullptr;
};

constexpr std::array kSideFields = {"engine",
                                    "engine_version",
                                    "dtype",
                                    "weights",
                                    "logprobs",
                                    "temperature",
                                    "top_p",
                                    "min_p",
                                    "top_k",
                                    "min_tokens",
                                    "repetition_penalty",
                                    "frequency_penalty",
                                    "presence_penalty"};

ClaimField SideField(SideClaims& side, std::string_view name) {
  if (name == "engine") return {.text = &side.engine};
  if (name == "engine_version") return {.text = &side.engine_version};
  if (name == "dtype") return {.text = &side.dtype};
  if (name == "weights") return {.text = &side.weights};
  if (name == "logprobs") return {.text = &side.logprobs};
  if (name == "policy") return {.text = &side.policy};
  if (name == "temperature") return {.number = &side.temperature};
  if (name == "top_p") return {.number = &side.top_p};
  if (name == "min_p") return {.number = &side.min_p};
  if (name == "repetition_penalty") return {.number = &side.repetition_penalty};
  if (name == "frequency_penalty") return {.number = &side.frequency_penalty};
  if (name == "presence_penalty") return {.number = &side.presence_penalty};
  if (name == "top_k") return {.whole = &side.top_k};
  if (name == "min_tokens") return {.whole = &side.min_tokens};
  return {};
}

ClaimField FieldOf(RecordsHeader& header, std::string_view key) {
  if (key == "model") return {.text = &header.model};
  if (key == "tokenizer") return {.text = &header.tokenizer};
  if (key == "created_at") return {.text = &header.created_at};
  if (key == "vocab_size") return {.whole = &header.vocab_size};
  constexpr std::string_view kBehaviourPrefix = "behaviour.", kProximalPrefix = "proximal.";
  if (key.starts_with(kBehaviourPrefix) && key != "behaviour.policy") {
    return SideField(header.behaviour, key.substr(kBehaviourPrefix.size()));
  }
  if (key.starts_with(kProximalPrefix)) {
    return SideField(header.proximal, key.substr(kProximalPrefix.size()));
  }
  return {};
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status SetEndTokens(std::string_view value, RecordsHeader& header) {
  header.eos_token_ids.clear();
  for (const absl::string_view part : absl::StrSplit(View(value), ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(part, &id)) {
      return InvalidArgument("eos_token_ids: expected ids separated by commas, found ", value);
    }
    header.eos_token_ids.push_back(id);
  }
  return absl::OkStatus();
}

// The words that a field takes; empty where it takes any.
absl::Status CheckWord(std::string_view key, std::string_view value) {
  if (key.ends_with(".logprobs") && value != "raw" && value != "processed") {
    return InvalidArgument(key, ": expected raw or processed, found ", value);
  }
  if (key.ends_with(".policy") && value != "proximal" && value != "moving") {
    return InvalidArgument(key, ": expected proximal or moving, found ", value);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> ClaimKeys() {
  std::vector<std::string> keys = {"model", "tokenizer", "created_at", "vocab_size",
                                   "eos_token_ids"};
  for (const char* side : {"behaviour.", "proximal."}) {
    for (const char* field : kSideFields) keys.push_back(absl::StrCat(side, field));
  }
  keys.push_back("proximal.policy");
  return keys;
}

absl::Status SetClaim(std::string_view key, std::string_view value, RecordsHeader& header) {
  if (key == "eos_token_ids") return SetEndTokens(value, header);
  const ClaimField field = FieldOf(header, key);
  if (field.text != nullptr) {
    TANDEM_RETURN_IF_ERROR(CheckWord(key, value));
    *field.text = std::string(value);
    return absl::OkStatus();
  }
  if (field.number != nullptr) {
    double number = 0;
    if (!absl::SimpleAtod(View(value), &number)) {
      return InvalidArgument(key, ": expected a number, found ", value);
    }
    *field.number = number;
    return absl::OkStatus();
  }
  if (field.whole != nullptr) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(View(value), &number)) {
      return InvalidArgument(key, ": expected a whole number, found ", value);
    }
    *field.whole = number;
    return absl::OkStatus();
  }
  const std::string nearest = NearestDotted(key, ClaimKeys());
  return InvalidArgument("there is no field ", key, " to claim",
                         nearest.empty()
                             ? "; docs/records.md lists those of the header and of a side"
                             : absl::StrCat("; did you mean ", nearest, "?"));
}

bool HasClaim(const RecordsHeader& header, std::string_view key) {
  if (key == "eos_token_ids") return !header.eos_token_ids.empty();
  RecordsHeader copy = header;
  const ClaimField field = FieldOf(copy, key);
  return (field.text != nullptr && !field.text->empty()) ||
         (field.number != nullptr && field.number->has_value()) ||
         (field.whole != nullptr && field.whole->has_value());
}

}  // namespace tandem::drift
