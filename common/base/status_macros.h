// Early return on absl::Status errors, and errors made of the parts of their message. The macros
// evaluate their argument once.
#pragma once

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem {

// An absl error whose message joins parts of any kind that absl::StrCat takes, or std::string_view:
// `return NotFound("group ", id, " is not held")`.
template <absl::Status (*kMake)(absl::string_view)>
struct ErrorOf {
  template <typename... Parts>
  absl::Status operator()(const Parts&... parts) const {
    return kMake(absl::StrCat(Part(parts)...));
  }

 private:
  template <typename T>
  static const T& Part(const T& part) {
    return part;
  }
  static absl::string_view Part(std::string_view part) { return {part.data(), part.size()}; }
};

inline constexpr ErrorOf<absl::AbortedError> Aborted;
inline constexpr ErrorOf<absl::AlreadyExistsError> AlreadyExists;
inline constexpr ErrorOf<absl::CancelledError> Cancelled;
inline constexpr ErrorOf<absl::DataLossError> DataLoss;
inline constexpr ErrorOf<absl::DeadlineExceededError> DeadlineExceeded;
inline constexpr ErrorOf<absl::FailedPreconditionError> FailedPrecondition;
inline constexpr ErrorOf<absl::InternalError> Internal;
inline constexpr ErrorOf<absl::InvalidArgumentError> InvalidArgument;
inline constexpr ErrorOf<absl::NotFoundError> NotFound;
inline constexpr ErrorOf<absl::OutOfRangeError> OutOfRange;
inline constexpr ErrorOf<absl::PermissionDeniedError> PermissionDenied;
inline constexpr ErrorOf<absl::ResourceExhaustedError> ResourceExhausted;
inline constexpr ErrorOf<absl::UnauthenticatedError> Unauthenticated;
inline constexpr ErrorOf<absl::UnavailableError> Unavailable;
inline constexpr ErrorOf<absl::UnimplementedError> Unimplemented;
inline constexpr ErrorOf<absl::UnknownError> Unknown;

}  // namespace tandem

#define TANDEM_MACRO_CONCAT_INNER(a, b) a##b
#define TANDEM_MACRO_CONCAT(a, b) TANDEM_MACRO_CONCAT_INNER(a, b)

// Returns the status of `expr` from the enclosing function if it is an error.
#define TANDEM_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                     \
    if (absl::Status tandem_status_ = (expr); !tandem_status_.ok()) return tandem_status_; \
  } while (false)

#define TANDEM_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                 \
  if (!result.ok()) return std::move(result).status();  \
  lhs = std::move(result).value()

// Assigns the value of the StatusOr `expr` to `lhs`, or returns its error.
#define TANDEM_ASSIGN_OR_RETURN(lhs, expr) \
  TANDEM_ASSIGN_OR_RETURN_IMPL(TANDEM_MACRO_CONCAT(tandem_or_, __LINE__), lhs, expr)
