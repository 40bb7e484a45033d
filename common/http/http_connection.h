// One connection of an HttpServer: reads requests, hands them out as HttpCalls, and sends the
// answers. Only http_server.cc and http_connection.cc include this header, which shows Boost.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/http/http_server.h"

namespace tandem {

// A connection as the server sees it.
class OpenConnection {
 public:
  virtual ~OpenConnection() = default;
  virtual void CloseSoon() = 0;  // from any thread
};

// What the connections of a server share. It lives as long as the last of them. Thread-safe.
class HttpShared {
 public:
  HttpShared(HttpServerOptions server_options, HttpServer::Handlers server_handlers)
      : options(std::move(server_options)), handlers(std::move(server_handlers)) {}

  void Opened(const std::shared_ptr<OpenConnection>& connection) ABSL_LOCKS_EXCLUDED(mu_);
  void Closed() ABSL_LOCKS_EXCLUDED(mu_);
  // `on_closed` runs whenever a connection was closed, until CloseAll.
  void WhenClosed(std::function<void()> on_closed) ABSL_LOCKS_EXCLUDED(mu_);

  // False once the server stops: then no request is taken any more.
  bool BeginCall() ABSL_LOCKS_EXCLUDED(mu_);
  void EndCall() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for the calls under way.
  void Drain(std::chrono::steady_clock::time_point deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void CloseAll() ABSL_LOCKS_EXCLUDED(mu_);

  const HttpServerOptions options;
  const HttpServer::Handlers handlers;
  boost::asio::io_context io;
  std::atomic<int64_t> num_open{0};

 private:
  Mutex mu_;
  CondVar ended_;
  std::function<void()> on_closed_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  int64_t num_calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::weak_ptr<OpenConnection>> connections_ ABSL_GUARDED_BY(mu_);
};

// Serves what comes over `socket`, whose executor is a strand, until it is closed.
void ServePlain(const std::shared_ptr<HttpShared>& shared, boost::asio::ip::tcp::socket socket);
void ServeTls(const std::shared_ptr<HttpShared>& shared, boost::asio::ip::tcp::socket socket,
              std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace tandem
