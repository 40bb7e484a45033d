// CatchTorch: turns LibTorch's exceptions into absl::Status.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Runs `f`; an exception becomes INTERNAL "WHAT: message". If `f` returns void the result is a
// Status, and if it returns a value the result is a StatusOr; a Status or StatusOr is passed
// through.
template <typename F>
auto CatchTorch(std::string_view what, F&& f) {
  using Result = std::invoke_result_t<F>;
  const auto failed = [&](const char* message) {
    return absl::InternalError(std::string(what) + ": " + message);
  };
  if constexpr (std::is_void_v<Result>) {
    try {
      std::forward<F>(f)();
      return absl::OkStatus();
    } catch (const std::exception& e) {
      return absl::Status(failed(e.what()));
    }
  } else if constexpr (std::is_convertible_v<absl::Status, Result>) {
    try {
      return std::forward<F>(f)();
    } catch (const std::exception& e) {
      return Result(failed(e.what()));
    }
  } else {
    try {
      return absl::StatusOr<Result>(std::forward<F>(f)());
    } catch (const std::exception& e) {
      return absl::StatusOr<Result>(failed(e.what()));
    }
  }
}

}  // namespace tandem
