// IsOk() and FailsWith(code, substring) for absl::Status and absl::StatusOr.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

MATCHER_P2(FailsWith, code, substring,
           "fails with code " + absl::StatusCodeToString(code) + " and a message containing '" +
               std::string(substring) + "'") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         std::string(status.message()).find(substring) != std::string::npos;
}

}  // namespace tandem::testing
