// HttpGet: one plain HTTP GET, for the observe ports of Tandem's own processes.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem::cli {

// Whether a user means a process by `name`: HOST:PORT, and no folder is called so.
bool IsAddress(const std::string& name);

struct HttpAnswer {
  int code = 0;
  std::string body;
};

// `address` is HOST:PORT or [IPv6]:PORT; each wait ends after `timeout_seconds`.
//   INVALID_ARGUMENT  an address of another form
//   UNAVAILABLE       no connection, no answer, or none of HTTP (address named)
absl::StatusOr<HttpAnswer> HttpGet(const std::string& address, const std::string& path,
                                   double timeout_seconds);

}  // namespace tandem::cli
