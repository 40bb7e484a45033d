#include "common/observe/observe_server.h"

#include <civetweb.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

constexpr int64_t kDefaultLogLines = 200;
constexpr char kPlain[] = "text/plain; charset=utf-8";

struct Answer {
  int code = 200;
  std::string body;
  const char* type = kPlain;
};

Answer Fails(int code, std::string why) { return {.code = code, .body = std::move(why) + "\n"}; }

const char* Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

// A number from the query string: `fallback` if it is absent, and negative if it is not a number.
int64_t QueryNumber(const mg_request_info& request, const char* name, int64_t fallback) {
  const std::string_view query = request.query_string == nullptr ? "" : request.query_string;
  char text[24];
  const int length = mg_get_var(query.data(), query.size(), name, text, sizeof(text));
  if (length == -1) return fallback;
  int64_t number = -1;
  return length >= 0 && absl::SimpleAtoi(text, &number) ? number : -1;
}

Answer Logs(const mg_request_info& request) {
  const int64_t lines = QueryNumber(request, "lines", kDefaultLogLines);
  const int64_t after = QueryNumber(request, "after", 0);
  if (lines < 0 || after < 0) return Fails(400, "lines and after are numbers of at least 0");
  Answer answer;
  for (const log::NumberedLine& line : log::LastLines(static_cast<size_t>(lines), after)) {
    absl::StrAppend(&answer.body, line.number, " ", line.text, "\n");
  }
  return answer;
}

}  // namespace

struct ObserveServer::Impl {
  Answer Route(const mg_request_info& request) const {
    static const std::map<std::string_view, Probe> kProbes = {
        {"/startupz", Probe::kStarted}, {"/readyz", Probe::kReady}, {"/livez", Probe::kLive}};
    const std::string_view path = request.local_uri;
    const std::string_view method = request.request_method;
    if (method != "GET" && method != "HEAD") return Fails(405, "GET or HEAD");
    if (const auto probe = kProbes.find(path); probe != kProbes.end()) {
      const ProbeAnswer answer = health->Ask(probe->second);
      return {.code = answer.yes ? 200 : 503, .body = answer.why + "\n"};
    }
    if (path == "/metrics") {
      return {.body = metrics->Render(), .type = "text/plain; version=0.0.4; charset=utf-8"};
    }
    if (path == "/logs") return Logs(request);
    return Fails(404, "here are /metrics, /startupz, /readyz, /livez and /logs");
  }

  static bool IsPage(std::string_view path) { return path == "/metrics" || path == "/logs"; }

  static int Handle(mg_connection* connection, void* self) {
    const mg_request_info& request = *mg_get_request_info(connection);
    auto& impl = *static_cast<Impl*>(self);
    if (!IsPage(request.local_uri)) return Send(connection, request, impl.Route(request));
    const bool has_room = ++impl.num_pages <= kThreadsForPages;
    const int code =
        Send(connection, request,
             has_room ? impl.Route(request)
                      : Fails(503, "too many readers of /metrics and /logs: try again"));
    --impl.num_pages;
    return code;
  }

  // Returns when the client has received the answer or was cut off.
  static int Send(mg_connection* connection, const mg_request_info& request, const Answer& answer) {
    const std::string head =
        absl::StrCat("HTTP/1.1 ", answer.code, " ", Reason(answer.code),
                     "\r\nContent-Type: ", answer.type, "\r\nContent-Length: ", answer.body.size(),
                     answer.code == 405 ? "\r\nAllow: GET, HEAD" : "",
                     "\r\nX-Content-Type-Options: nosniff\r\nCache-Control: "
                     "no-store\r\nConnection: close\r\n\r\n");
    mg_write(connection, head.data(), head.size());
    if (std::string_view(request.request_method) != "HEAD") {
      mg_write(connection, answer.body.data(), answer.body.size());
    }
    return answer.code;
  }

  const MetricsRegistry* metrics = nullptr;
  const Health* health = nullptr;
  mg_context* context = nullptr;
  int port = 0;
  std::atomic<int> num_pages = 0;  // pages being answered now
};

absl::Status CheckObserveAddress(const std::string& option, const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon != std::string::npos && colon > 0 &&
      std::ranges::all_of(address.substr(colon + 1), [](char c) { return c >= '0' && c <= '9'; }) &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port <= 65535 &&
      address.find_first_of(", \t+") == std::string::npos) {
    return absl::OkStatus();
  }
  return InvalidArgument(option, " is '", address, "', must be HOST:PORT (127.0.0.1:9400)");
}

absl::StatusOr<std::unique_ptr<ObserveServer>> ObserveServer::Listen(const std::string& address,
                                                                     const MetricsRegistry* metrics,
                                                                     const Health* health,
                                                                     absl::Duration patience) {
  if (absl::Status bad = CheckObserveAddress("the observe address", address); !bad.ok()) return bad;
  const std::string threads = std::to_string(kThreads);
  const std::string patience_ms = std::to_string(absl::ToInt64Milliseconds(patience));
  const std::vector<const char*> options = {"listening_ports",
                                            address.c_str(),
                                            "num_threads",
                                            threads.c_str(),
                                            "connection_queue",
                                            "32",
                                            "listen_backlog",
                                            "32",
                                            "request_timeout_ms",
                                            patience_ms.c_str(),
                                            "linger_timeout_ms",
                                            "1000",
                                            "max_request_size",
                                            "4096",
                                            "enable_keep_alive",
                                            "no",
                                            "enable_directory_listing",
                                            "no",
                                            nullptr};
  auto impl = std::make_unique<Impl>();
  impl->metrics = metrics;
  impl->health = health;
  const mg_callbacks callbacks = {};
  impl->context = mg_start(&callbacks, nullptr, const_cast<const char**>(options.data()));
  if (impl->context == nullptr) {
    return Unavailable("observe address ", address,
                       " cannot be bound: is another process on this port?");
  }
  auto server = std::unique_ptr<ObserveServer>(new ObserveServer(std::move(impl)));
  mg_server_port ports[4] = {};
  if (mg_get_server_ports(server->impl_->context, 4, ports) < 1) {
    return Unavailable(address, ": no port was bound");
  }
  server->impl_->port = ports[0].port;
  mg_set_request_handler(server->impl_->context, "/**", Impl::Handle, server->impl_.get());
  return server;
}

ObserveServer::ObserveServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ObserveServer::~ObserveServer() { mg_stop(impl_->context); }
int ObserveServer::port() const { return impl_->port; }

}  // namespace tandem
