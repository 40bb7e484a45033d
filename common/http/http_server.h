// HttpServer: a listening port that speaks HTTP/1.1, over TLS where it has certificates, by
// Boost.Beast: asynchronous, so that hundreds of open connections and slow readers cost memory of a
// fixed size each and no thread. Boost is not visible in this header.
//
// A handler gets each request as an HttpCall, answers it whole or as a stream, and may do so later
// and from any thread. Limits hold before a handler sees anything: the size of headers and body, how
// slowly a client may send and read, and how many connections are open.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/roles.h"

namespace tandem {

// The head of a request as it arrives.
struct HttpHead {
  std::string method;                          // "POST"
  std::string path;                            // without the query: "/v1/completions"
  std::map<std::string, std::string> query;    // decoded
  std::map<std::string, std::string> headers;  // names in lower case; of a repeated one, the last
  rpc::PeerName peer;                          // of the client's certificate; empty in plaintext

  // The value of a header, whose name is in lower case; null without it.
  const std::string* Header(const std::string& name) const;
};

struct HttpReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;  // beside length, type and date
  std::string content_type = "application/json";
  std::string body;
};

// One request and its answer: Answer once, or Begin, Writes and End. Calls after the client has gone
// do nothing. Thread-safe.
class HttpCall {
 public:
  virtual ~HttpCall() = default;

  virtual const HttpHead& head() const = 0;
  virtual const std::string& body() const = 0;

  virtual void Answer(HttpReply reply) = 0;

  // A streamed answer; `head.body` is its first piece. `written` runs on a thread of the server when
  // the client's connection has taken the piece: write the next one then, so that a slow reader
  // holds no more than a piece.
  virtual void Begin(HttpReply head) = 0;
  virtual void Write(std::string piece, std::function<void()> written) = 0;
  virtual void End() = 0;

  // Runs `work` on a thread of the server, in turn with what else is run for this call; never once
  // the client has gone.
  virtual void Post(std::function<void()> work) = 0;

  // `gone` runs once on a thread of the server if the client goes before its answer is whole; at
  // once if it has gone already. Call it at most once.
  virtual void WhenGone(std::function<void()> gone) = 0;
};

struct HttpServerOptions {
  std::string listen;  // HOST:PORT; port 0 picks a free one
  // 1 where handlers are quick: streams of many clients go from one thread fastest. A handler that
  // takes long holds up one of them.
  int num_threads = 2;
  // PEM files: the key and certificates of this server, and the authorities that clients'
  // certificates must be signed by. They are read again when they change. Empty: plaintext.
  std::string identity_file, authorities_file;
  int64_t max_body_bytes = 8 << 20;
  int64_t max_connections = 1024;  // more wait until one is closed
  // For the head of a request, for each part of a body or an answer, and for a TLS handshake.
  absl::Duration patience = absl::Seconds(30);
  absl::Duration idle = absl::Seconds(75);  // between two requests on one connection
};

class HttpServer {
 public:
  struct Handlers {
    // Checks the head of a request before its body is read. The status of an error becomes a reply
    // by `refuse`.
    std::function<absl::Status(const HttpHead&)> admit;
    // The reply to a request that is refused here: by `admit`, or RESOURCE_EXHAUSTED for a body that
    // is too long, INVALID_ARGUMENT for what is not HTTP, INTERNAL for an exception of `handle`.
    std::function<HttpReply(const HttpHead&, const absl::Status&)> refuse;
    // On the call's thread (HttpCall::Post).
    std::function<void(std::shared_ptr<HttpCall>)> handle;
  };

  //   INVALID_ARGUMENT  the address is no HOST:PORT, or the certificate files cannot be used
  //   UNAVAILABLE       the address cannot be bound (named)
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options,
                                                            Handlers handlers);
  // Stop with no time left.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

  // Accepts no connection and takes no request any more, waits at most so long for answers under
  // way, then cuts off the others.
  void Stop(absl::Duration at_most);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
