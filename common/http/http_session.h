// HttpSession: one HTTP request after another over one connection, with verified TLS, headers in
// both directions and a body that is handed on as it arrives. libcurl is not visible in this
// header. Used by the clients of reward services and engines (trainer/rewards/external/
// http_client.cc) and by the client of the Hugging Face Hub (common/hub/hub_client.cc).
//
// One easy handle of libcurl: a thread has one request under way anyway, and code that waits is
// simpler than the callbacks of a multi handle.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tandem {

struct HttpRequest {
  enum class Method { kGet, kHead, kPost };
  Method method = Method::kGet;
  std::string url;                   // http:// or https://
  std::vector<std::string> headers;  // "Name: value"
  std::string_view body;             // of kPost; must outlive Send
};

struct HttpAnswer {
  //   OK                 a whole answer came, whatever its HTTP status
  //   UNAVAILABLE        no connection, or it broke before the answer was whole
  //   DEADLINE_EXCEEDED  no answer in time, or the bytes stopped coming
  //   CANCELLED          the request was cancelled
  //   what the sink returned
  absl::Status status;
  int http_status = 0;                         // 0: no answer
  std::map<std::string, std::string> headers;  // names in lower case

  // The value of a header, whose name is in lower case; empty without it.
  std::string Header(const std::string& name) const;
};

struct HttpSessionOptions {
  std::string ca_file;                     // PEM; empty: the authorities of the system
  std::string certificate_file, key_file;  // PEM, shown to the server; empty: none
  bool verify_tls = true;
  double timeout_seconds = 0;  // of a whole request; 0: none
  double stall_seconds = 0;    // ends a request whose bytes stop coming for so long; 0: none
  std::string user_agent = "tandem";
};

// Use from one thread, which blocks SIGPIPE.
class HttpSession {
 public:
  explicit HttpSession(const HttpSessionOptions& options);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  // Takes a piece of the body. `answer` has the HTTP status and the headers. An error ends the
  // request.
  using Sink = std::function<absl::Status(const HttpAnswer& answer, std::string_view bytes)>;

  // Redirects are not followed: a token goes only where the caller sends it. Requests to this
  // machine use no proxy of the environment, which could not reach it and would see the token.
  HttpAnswer Send(const HttpRequest& request, const Sink& sink);

  // Requests end, with CANCELLED, once `cancelled` is true. It is asked on the thread of Send, at
  // least once a second.
  void UseCancel(std::function<bool()> cancelled);

 private:
  struct Handle;
  const std::unique_ptr<Handle> handle_;
};

// What Retry-After asks for: seconds, or a date of HTTP, which is compared with `now`, in seconds
// since 1970. 0 for anything else, and for a date that has passed.
double RetryAfterSeconds(const std::string& value, double now);

// HOST:PORT, HOST or [ADDRESS]:PORT of a URL, with what stands before an @.
std::string UrlAuthority(const std::string& url);

// True for the URL of a loopback address.
bool IsThisMachine(const std::string& url);

}  // namespace tandem
