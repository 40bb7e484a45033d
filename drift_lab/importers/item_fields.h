// Typed fields of one JSON value that a framework or engine wrote (an item: a line, an answer, a
// sample). Used by the importers. Values are carried as they are: a null stays "no value", the texts
// that stand for numbers which JSON does not have become those numbers, and nothing is converted but
// the type. Pure.
//
// Errors of all functions: INVALID_ARGUMENT "FIELD: expected ..., found ...".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

// The value at `path` ("logprobs.content", "choices.0.text": members and elements). Null if there is
// none, or if it is null.
const nlohmann::json* FindField(const nlohmann::json& item, std::string_view path);

// "a number", "text", "a list of 3", "an object", for messages.
std::string Described(const nlohmann::json& value);

// Nothing if `value` is no whole number of 32 bits.
std::optional<int32_t> IdIn(const nlohmann::json& value);

absl::StatusOr<std::vector<int32_t>> ReadIds(const nlohmann::json& value, std::string_view field);
// A list of 0 and 1, of true and false, or of 0.0 and 1.0.
absl::StatusOr<std::vector<uint8_t>> ReadMask(const nlohmann::json& value, std::string_view field);
// kNoValue for null.
absl::StatusOr<std::vector<float>> ReadFloats(const nlohmann::json& value, std::string_view field);
absl::StatusOr<float> ReadFloat(const nlohmann::json& value, std::string_view field);
absl::StatusOr<int64_t> ReadInt(const nlohmann::json& value, std::string_view field);

// The same of members that may be missing or null: nothing, then. A wrong type is an error.
absl::StatusOr<std::optional<int64_t>> IntOf(const nlohmann::json& item, std::string_view path);
absl::StatusOr<std::optional<double>> NumberOf(const nlohmann::json& item, std::string_view path);
// "" if there is none. A number is written out.
std::string TextOf(const nlohmann::json& item, std::string_view path);

// The member at `path`, which must be there and not null.
absl::StatusOr<const nlohmann::json*> NeedField(const nlohmann::json& item, std::string_view path,
                                                std::string_view expected);

// `values` with `before` elements without a value in front and `after` behind.
std::vector<float> Placed(const std::vector<float>& values, size_t before, size_t after = 0);

}  // namespace tandem::drift
