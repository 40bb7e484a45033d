#include "cli/watch/http_get.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr size_t kMaxAnswerBytes = 64 << 20;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::Status Unreachable(const std::string& address, const std::string& why) {
  return Unavailable(address, ": ", why);
}

absl::StatusOr<Socket> Connect(const std::string& address, double timeout_seconds) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return InvalidArgument("'", address, "' is not HOST:PORT");
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int resolved = ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (resolved != 0) return Unreachable(address, gai_strerror(resolved));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  timeval timeout = {.tv_sec = static_cast<time_t>(timeout_seconds)};
  timeout.tv_usec = static_cast<suseconds_t>(1e6 * (timeout_seconds - std::floor(timeout_seconds)));
  std::string why = "no address";
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    if (::connect(socket.fd(), one->ai_addr, one->ai_addrlen) == 0) return socket;
    why = errno == EINPROGRESS ? "no answer" : std::strerror(errno);
  }
  return Unreachable(address, why);
}

}  // namespace

bool IsAddress(const std::string& name) {
  const size_t colon = name.rfind(':');
  int port = 0;
  std::error_code ignored;
  return colon != std::string::npos && colon > 0 &&
         absl::SimpleAtoi(name.substr(colon + 1), &port) && port > 0 && port < 65536 &&
         !std::filesystem::is_directory(name, ignored);
}

absl::StatusOr<HttpAnswer> HttpGet(const std::string& address, const std::string& path,
                                   double timeout_seconds) {
  TANDEM_ASSIGN_OR_RETURN(const Socket socket, Connect(address, timeout_seconds));
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\n\r\n");
  if (::send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return Unreachable(address, "the request was not taken");
  }
  std::string reply;
  char block[16384];
  ssize_t count = 0;
  while (reply.size() < kMaxAnswerBytes &&
         (count = ::read(socket.fd(), block, sizeof(block))) > 0) {
    reply.append(block, static_cast<size_t>(count));
  }
  if (count < 0) return Unreachable(address, "no answer");
  const size_t head = reply.find("\r\n\r\n");
  HttpAnswer answer;
  if (head == std::string::npos || !absl::StartsWith(reply, "HTTP/1.") ||
      !absl::SimpleAtoi(reply.substr(9, 3), &answer.code)) {
    return Unreachable(address, "what answers is not an observe port");
  }
  answer.body = reply.substr(head + 4);
  return answer;
}

}  // namespace tandem::cli
