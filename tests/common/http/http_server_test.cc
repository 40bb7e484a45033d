#include "common/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A client that writes bytes and reads until the server closes.
class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Write(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<size_t>(count);
    }
  }

  // Until `end` has come, or the server closed.
  std::string ReadUntil(const std::string& end) {
    char bytes[4096];
    while (end.empty() || text_.find(end) == std::string::npos) {
      const ssize_t count = recv(fd_, bytes, sizeof(bytes), 0);
      if (count <= 0) break;
      text_.append(bytes, static_cast<size_t>(count));
    }
    return text_;
  }
  std::string ReadAll() { return ReadUntil(""); }

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
  std::string text_;
};

std::string Post(const std::string& body, const std::string& more = "") {
  return absl::StrCat("POST /echo?a=b%20c HTTP/1.1\r\nHost: x\r\n", more,
                      "Content-Length: ", body.size(), "\r\n\r\n", body);
}

// A server that refuses /secret, and hands every other request to `handle`.
class HttpServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<HttpServer> Serve(std::function<void(std::shared_ptr<HttpCall>)> handle,
                                    HttpServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    auto server = HttpServer::Listen(
        options, {[](const HttpHead& head) {
                    return head.path == "/secret" ? PermissionDenied("not you") : absl::OkStatus();
                  },
                  [](const HttpHead&, const absl::Status& why) {
                    const bool long_body = absl::IsResourceExhausted(why);
                    return HttpReply{.status = long_body                       ? 413
                                               : absl::IsPermissionDenied(why) ? 403
                                               : absl::IsInternal(why)         ? 500
                                                                               : 400,
                                     .body = std::string(why.message())};
                  },
                  std::move(handle)});
    EXPECT_THAT(server, tandem::testing::IsOk());
    return *std::move(server);
  }

  static void Echo(const std::shared_ptr<HttpCall>& call) {
    call->Answer({.body = absl::StrCat(call->head().method, " ", call->head().query.at("a"), " ",
                                       call->body())});
  }
};

TEST_F(HttpServerTest, AnswersARequestWithItsMethodQueryAndBody) {
  const auto server = Serve(Echo);
  Client client(server->port());
  client.Write(Post("hello", "Connection: close\r\n"));
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 14\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nPOST b c hello"));
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrderAlsoWhenAnswersComeLater) {
  std::vector<std::thread> answering;
  const auto server = Serve(
      [&](std::shared_ptr<HttpCall> call) { answering.emplace_back([call] { Echo(call); }); });
  Client client(server->port());
  client.Write(Post("1") + Post("2") + Post("3", "Connection: close\r\n"));
  const std::string answer = client.ReadAll();
  EXPECT_LT(answer.find("b c 1"), answer.find("b c 2"));
  EXPECT_LT(answer.find("b c 2"), answer.find("b c 3"));
  for (std::thread& thread : answering) thread.join();
}

TEST_F(HttpServerTest, StreamsPiecesAsChunksEachAfterTheOneBeforeWasTaken) {
  const auto server = Serve([](std::shared_ptr<HttpCall> call) {
    call->Begin({.content_type = "text/plain", .body = "first"});
    call->Write("second", [call] { call->Write("third", [call] { call->End(); }); });
  });
  Client client(server->port());
  client.Write(Post("", "Connection: close\r\n"));
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n5\r\nfirst\r\n6\r\nsecond\r\n5\r\nthird\r\n0\r\n\r\n"));
}

TEST_F(HttpServerTest, AnOldClientGetsAStreamWithoutChunksUntilTheConnectionEnds) {
  const auto server = Serve([](std::shared_ptr<HttpCall> call) {
    call->Begin({});
    call->Write("whole", nullptr);
    call->End();
  });
  Client client(server->port());
  client.Write("GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), EndsWith("\r\n\r\nwhole"));
}

TEST_F(HttpServerTest, TellsOnceThatTheClientHasGone) {
  Mutex mu;
  CondVar changed;
  int gone = 0;
  std::shared_ptr<HttpCall> held;
  const auto server = Serve([&](std::shared_ptr<HttpCall> call) {
    call->WhenGone([&] {
      MutexLock lock(&mu);
      ++gone;
      changed.NotifyAll();
    });
    call->Begin({.body = "first"});
    MutexLock lock(&mu);
    held = call;
  });
  {
    Client client(server->port());
    client.Write(Post("x"));
    EXPECT_THAT(client.ReadUntil("first"), HasSubstr("first"));
  }
  MutexLock lock(&mu);
  while (gone == 0) changed.Wait(&mu);
  held->Write("nobody reads this", [] { FAIL(); });
  held->End();
  EXPECT_EQ(gone, 1);
}

TEST_F(HttpServerTest, RefusesByTheHeadBeforeTheBodyIsRead) {
  const auto server = Serve(Echo);
  Client client(server->port());
  client.Write("POST /secret HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("not you"), StartsWith("HTTP/1.1 403 Forbidden\r\n"));
}

TEST_F(HttpServerTest, RefusesABodyOverTheLimitAndWhatIsNotHttp) {
  const auto server = Serve(Echo, {.max_body_bytes = 10});
  Client large(server->port()), junk(server->port());
  large.Write(Post("12345678901"));
  EXPECT_THAT(large.ReadUntil("takes"), HasSubstr("413"));
  junk.Write("what is this\r\n\r\n");
  EXPECT_THAT(junk.ReadUntil("HTTP/1.1: "), HasSubstr("400"));
}

TEST_F(HttpServerTest, AnExceptionOfTheHandlerIsAnAnswer) {
  const auto server =
      Serve([](const std::shared_ptr<HttpCall>&) { throw std::runtime_error("a bug"); });
  Client client(server->port());
  client.Write(Post("x"));
  EXPECT_THAT(client.ReadUntil("a bug"), HasSubstr("500"));
}

TEST_F(HttpServerTest, ASlowClientIsCutOffAndTheOthersAreServed) {
  const auto server = Serve(Echo, {.patience = absl::Milliseconds(50)});
  Client slow(server->port()), quick(server->port());
  slow.Write("POST /echo HTTP/1.1\r\n");
  quick.Write(Post("x", "Connection: close\r\n"));
  EXPECT_THAT(quick.ReadAll(), EndsWith("b c x"));
  EXPECT_EQ(slow.ReadAll(), "");  // closed
}

TEST_F(HttpServerTest, MoreConnectionsThanTheMostWaitForOneToClose) {
  const auto server = Serve(Echo, {.max_connections = 1});
  Client first(server->port()), second(server->port());
  second.Write(Post("2", "Connection: close\r\n"));
  first.Write(Post("1"));
  EXPECT_THAT(first.ReadUntil("b c 1"), EndsWith("b c 1"));
  first.Close();
  EXPECT_THAT(second.ReadAll(), EndsWith("b c 2"));
}

TEST_F(HttpServerTest, StopLetsAnswersUnderWayEnd) {
  std::thread answering;
  auto server = Serve([&](std::shared_ptr<HttpCall> call) {
    call->Begin({.body = "first"});
    answering = std::thread([call] {
      call->Write("last", nullptr);
      call->End();
    });
  });
  Client client(server->port());
  client.Write(Post("x"));
  client.ReadUntil("first");
  server->Stop(absl::Seconds(30));
  EXPECT_THAT(client.ReadAll(), EndsWith("4\r\nlast\r\n0\r\n\r\n"));
  answering.join();
}

TEST_F(HttpServerTest, StopCutsOffWhatDoesNotEnd) {
  auto server = Serve([](std::shared_ptr<HttpCall> call) { call->Begin({.body = "first"}); });
  Client client(server->port());
  client.Write(Post("x"));
  client.ReadUntil("first");
  server->Stop(absl::ZeroDuration());
  EXPECT_THAT(client.ReadAll(), EndsWith("first\r\n"));
}

TEST(HttpServerListen, SaysWhichAddressCannotBeHad) {
  EXPECT_THAT(HttpServer::Listen({.listen = "nonsense"}, {}),
              tandem::testing::FailsWith(absl::StatusCode::kInvalidArgument, "HOST:PORT"));
  EXPECT_THAT(HttpServer::Listen({.listen = "192.0.2.1:80"}, {}),
              tandem::testing::FailsWith(absl::StatusCode::kUnavailable, "192.0.2.1:80"));
}

}  // namespace
}  // namespace tandem
