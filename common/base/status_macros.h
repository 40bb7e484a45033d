// Early return on absl::Status errors. The macros evaluate their argument once.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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
