// ConfigFields: typed reading of the fields of a JSON object such as config.json, with errors that
// name the field. Used by model_config.cc and rope.cc. Use from one thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/weights/host_tensor.h"
#include "nlohmann/json.hpp"

namespace tandem {

// The largest size that a field may have.
inline constexpr int64_t kMaxConfigSize = int64_t{1} << 31;

// Reads typed fields of one JSON object. The first failure is kept in status(), and later reads
// return their fallback, so a caller reads all fields and checks once. A null counts as absent.
class ConfigFields {
 public:
  using Json = nlohmann::json;

  ConfigFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const absl::Status& status() const { return status_; }

  template <typename... Parts>
  void Refuse(const Parts&... parts) {
    Keep(Unimplemented(where_, ": ", parts...));
  }
  template <typename... Parts>
  void Reject(const Parts&... parts) {
    Keep(InvalidArgument(where_, ": ", parts...));
  }

  // Whether the key is there, even as null.
  bool Has(const char* key) const { return object_.contains(key); }

  // Null for an absent field.
  const Json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  int64_t Integer(const char* key, std::optional<int64_t> fallback, int64_t min, int64_t max) {
    const Json* const value = Present(key, fallback.has_value());
    if (value == nullptr) return fallback.value_or(min);
    if (!value->is_number_integer() || *value < min || *value > max) {
      Reject(key, " is ", value->dump(), "; an integer in [", min, ", ", max, "] is needed");
      return min;
    }
    return value->get<int64_t>();
  }

  // A number greater than 0.
  double Positive(const char* key, std::optional<double> fallback) {
    const Json* const value = Present(key, fallback.has_value());
    if (value == nullptr) return fallback.value_or(1);
    if (!value->is_number() || !(value->get<double>() > 0)) {
      Reject(key, " is ", value->dump(), "; a number above 0 is needed");
      return 1;
    }
    return value->get<double>();
  }

  // A number in (0, 1].
  double Share(const char* key, double fallback) {
    const double value = Positive(key, fallback);
    if (value > 1) Reject(key, " is ", value, "; a number in (0, 1] is needed");
    return value;
  }

  bool Flag(const char* key, bool fallback) {
    const Json* const value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      Reject(key, " is ", value->dump(), "; true or false is needed");
      return fallback;
    }
    return value->get<bool>();
  }

  std::string Text(const char* key, std::optional<std::string> fallback) {
    const Json* const value = Present(key, fallback.has_value());
    if (value == nullptr) return fallback.value_or("");
    if (!value->is_string()) {
      Reject(key, " is ", value->dump(), "; a string is needed");
      return "";
    }
    return value->get<std::string>();
  }

 private:
  const Json* Present(const char* key, bool optional) {
    const Json* const value = Find(key);
    if (value == nullptr && !optional) Reject("the field ", key, " is missing");
    return value;
  }

  void Keep(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const Json& object_;
  const std::string where_;
  absl::Status status_;
};

// The names of dtypes in the field "torch_dtype" or "dtype".
inline constexpr std::array<std::pair<std::string_view, DType>, 4> kConfigDTypes = {
    {{"float32", DType::kF32},
     {"bfloat16", DType::kBF16},
     {"float16", DType::kF16},
     {"float64", DType::kF64}}};

}  // namespace tandem
