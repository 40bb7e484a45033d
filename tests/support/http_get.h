// Speaks HTTP with a port of this machine at the level of bytes, so that tests see what is on the
// wire.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>

namespace tandem::testing {

// Sends `bytes` unchanged and returns everything that comes back until the other side closes.
inline std::string HttpExchange(int port, const std::string& bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience = {.tv_sec = 30, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string reply;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) {
    char block[4096];
    for (ssize_t n; (n = ::read(fd, block, sizeof(block))) > 0;) {
      reply.append(block, static_cast<size_t>(n));
    }
  }
  ::close(fd);
  return reply;
}

// Status line, headers and body.
inline std::string HttpGet(int port, const std::string& path) {
  return HttpExchange(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

}  // namespace tandem::testing
