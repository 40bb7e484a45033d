// HttpGet: a plain HTTP GET request to the observe port of a process (common/observe).
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem::cli {

// True if `name` has the form HOST:PORT and is not the name of a directory.
bool IsAddress(const std::string& name);

struct HttpAnswer {
  int code = 0;
  std::string body;
};

// `address` is HOST:PORT or [IPv6]:PORT. Each wait ends after `timeout_seconds`.
//   INVALID_ARGUMENT  the address has another form
//   UNAVAILABLE       no connection, no answer, or an answer that is not HTTP (address named)
absl::StatusOr<HttpAnswer> HttpGet(const std::string& address, const std::string& path,
                                   double timeout_seconds);

}  // namespace tandem::cli
