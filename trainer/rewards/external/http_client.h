// HttpClient: JSON over HTTP (common/http/http_session.h), with a bearer token and verified TLS.
// One per worker thread, which keeps its connection. Used by http_reward.cc, judge_reward.cc and
// foreign/vllm_server.cc.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/http/http_session.h"
#include "common/options/options.h"
#include "trainer/rewards/external/service_call.h"

namespace tandem::trainer {

struct HttpClientOptions {
  std::string url;
  std::vector<std::string> headers;  // "Name: value", more than those that are always sent
  std::string token_file;            // its first line is the bearer token; empty: none
  std::string ca_file;               // PEM; empty: the authorities of the system
  bool verify_tls = true;
};
// `token_option`: the name of token_file.
void BindOptions(OptionBinder& binder, HttpClientOptions& options, const char* token_option);

// Checks what can be known without a call. `section` is the section of the options, for messages.
//   INVALID_ARGUMENT  no http:// or https:// URL, or one with a user; a token that would travel in plaintext to another
//                     machine, or TLS that is not verified to one; a header that is no "Name:
//                     value"; with exit code 3, a file that cannot be read
absl::Status CheckHttpClientOptions(const HttpClientOptions& options, const std::string& section);

// An attempt, with the body where its status is OK.
struct HttpReply {
  Attempt attempt;
  int http_status = 0;  // 0: no answer
  std::string body;
};

// Use from one thread, which blocks SIGPIPE.
class HttpClient {
 public:
  // `end` must outlive it.
  HttpClient(const HttpClientOptions& options, double timeout_seconds, EndSign* end);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Posts `json` to options.url + `path`. Redirects are not followed: a token goes to nobody else.
  // The token's file is read for each call, so that a renewed one is used.
  //   OK                   the service answered 2xx
  //   UNAVAILABLE          no connection, or 5xx (may be repeated)
  //   RESOURCE_EXHAUSTED   429 (may be repeated, the service is busy); a body over 16 MiB
  //   DEADLINE_EXCEEDED    no answer in time, or 408 (may be repeated)
  //   FAILED_PRECONDITION  another status; a token file that cannot be read
  //   CANCELLED            `end` was given; found within a second
  HttpReply Post(const std::string& path, const std::string& json);

  // The same without a body, by GET.
  HttpReply Get(const std::string& path);

  // Requests also end, as by `end`, once `cancelled` says so; it is asked on this thread.
  void UseCancel(std::function<bool()> cancelled);

 private:
  HttpReply Send(HttpRequest request);
  const HttpClientOptions options_;
  EndSign* const end_;
  std::function<bool()> cancelled_;  // may be empty
  HttpSession session_;
};

}  // namespace tandem::trainer
