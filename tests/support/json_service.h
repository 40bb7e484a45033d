// JsonService: an HTTP server in this process on a free loopback port whose answers a test writes,
// for clients of reward services and judges.
#pragma once

#include <arpa/inet.h>
#include <civetweb.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace tandem::testing {

class JsonService {
 public:
  struct Request {
    std::string path, authorization, body;
    std::map<std::string, std::string> headers;
  };
  struct Reply {
    int status = 200;
    std::string body;
    std::string header = {};  // one more, "Name: value"
  };
  // Called on many threads at once.
  using Answer = std::function<Reply(const Request&)>;

  explicit JsonService(Answer answer) : answer_(std::move(answer)) {
    const char* options[] = {"listening_ports",   "127.0.0.1:0", "num_threads", "80",
                             "enable_keep_alive", "yes",         nullptr};
    mg_callbacks callbacks = {};
    context_ = mg_start(&callbacks, this, options);
    EXPECT_NE(context_, nullptr);
    mg_set_request_handler(context_, "/", Handle, this);
  }
  ~JsonService() { Stop(); }
  JsonService(const JsonService&) = delete;
  JsonService& operator=(const JsonService&) = delete;

  // civetweb looks every two seconds whether it is to stop, or when somebody connects.
  void Stop() {
    if (context_ == nullptr) return;
    const int port = this->port();
    std::atomic<bool> stopped = false;
    std::thread stops([&] {
      mg_stop(std::exchange(context_, nullptr));
      stopped = true;
    });
    while (!stopped) {
      Connect(port);
      usleep(1000);
    }
    stops.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port()); }

  std::vector<Request> requests() const {
    MutexLock lock(&mu_);
    return requests_;
  }

 private:
  int port() const {
    mg_server_port port = {};
    EXPECT_EQ(mg_get_server_ports(context_, 1, &port), 1);
    return port.port;
  }

  static void Connect(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    ::close(fd);
  }

  static int Handle(mg_connection* connection, void* self) {
    JsonService& service = *static_cast<JsonService*>(self);
    const mg_request_info& info = *mg_get_request_info(connection);
    Request request = {.path = info.local_uri};
    for (int i = 0; i < info.num_headers; ++i) {
      request.headers[info.http_headers[i].name] = info.http_headers[i].value;
    }
    request.authorization = request.headers["Authorization"];
    char block[4096];
    for (int n; (n = mg_read(connection, block, sizeof(block))) > 0;) {
      request.body.append(block, static_cast<size_t>(n));
    }
    {
      MutexLock lock(&service.mu_);
      service.requests_.push_back(request);
    }
    const Reply reply = service.answer_(request);
    const std::string more = reply.header.empty() ? "" : reply.header + "\r\n";
    mg_printf(
        connection,
        "HTTP/1.1 %d Status\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n",
        reply.status, reply.body.size(), more.c_str());
    mg_write(connection, reply.body.data(), reply.body.size());
    return reply.status;
  }

  const Answer answer_;
  mg_context* context_ = nullptr;
  mutable Mutex mu_;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::testing
