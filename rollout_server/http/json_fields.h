// JsonFields: reads the fields of a JSON object that a caller sent, and says of the first one that
// is not as it should be which it is, what was expected and what came. A null counts as a missing
// field, as in OpenAI's API.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::rollout {

using Json = nlohmann::ordered_json;

// As the text of one line, with U+FFFD for bytes that are not UTF-8.
std::string JsonText(const Json& json);

// Parses what a caller sent: a JSON object, with at most 64 levels.
//   INVALID_ARGUMENT  it is none (the byte is named)
absl::StatusOr<Json> ParseBody(const std::string& body);

// An INVALID_ARGUMENT that carries the field it is about (ParamOf).
absl::Status BadField(const std::string& field, const std::string& message);
absl::Status AboutField(const std::string& field, absl::Status error);
std::string ParamOf(const absl::Status& status);  // empty: of no field

class JsonFields {
 public:
  // `object` must outlive this. `prefix` stands before names in messages: "sampling_params.".
  explicit JsonFields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Each returns nothing for a missing field and for one that is wrong, which status() then says.
  std::optional<double> Number(const std::string& name);
  std::optional<int64_t> Integer(const std::string& name, int64_t least, int64_t most);
  std::optional<bool> Flag(const std::string& name);
  std::optional<std::string> Text(const std::string& name);
  // An array of integers in this range.
  std::optional<std::vector<int32_t>> Ids(const std::string& name, int64_t least, int64_t most);
  const Json* Find(const std::string& name);  // of any kind; null: missing

  // The field is not supported: it may be missing, or have a value that changes nothing.
  void Unsupported(const std::string& name, const std::function<bool(const Json&)>& is_neutral,
                   std::string_view why);
  // Fields that change nothing here, whatever they hold.
  void Ignore(std::initializer_list<const char*> names);

  void Fail(const std::string& name, const std::string& message);

  const absl::Status& status() const { return status_; }
  std::vector<std::string> Unknown() const;  // names that nobody asked for

 private:
  void Wrong(const std::string& name, const Json& value, const std::string& want);

  const Json& object_;
  const std::string prefix_;
  std::set<std::string> asked_;
  absl::Status status_;
};

}  // namespace tandem::rollout
