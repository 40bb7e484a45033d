// Observation: the port as a client sees it, through real sockets.
#include "common/observe/observation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/log.h"
#include "tests/support/http_get.h"
#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::HttpExchange;
using testing::HttpGet;
using testing::IsOk;
using ::testing::Not;
using ::testing::StartsWith;

class ObservationTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_THAT(observation_.Serve("127.0.0.1:0"), IsOk()); }

  std::string Get(const std::string& path) { return HttpGet(observation_.port(), path); }

  Observation observation_{"rollout_server"};
};

TEST_F(ObservationTest, AProcessThatComesUpIsLiveAndNeitherStartedNorReady) {
  EXPECT_THAT(Get("/livez"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("\r\n\r\nstarting\n")));
  EXPECT_THAT(Get("/startupz"), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
}

TEST_F(ObservationTest, AProbeAnswersWhatItWasSetToLast) {
  bool ready = false;
  observation_.health()->Set(Probe::kReady, [&] { return ProbeAnswer{ready, "version 7"}; });
  EXPECT_THAT(Get("/readyz"), AllOf(HasSubstr(" 503 "), EndsWith("\r\n\r\nversion 7\n")));
  ready = true;
  EXPECT_THAT(Get("/readyz"), AllOf(HasSubstr(" 200 "), EndsWith("\r\n\r\nversion 7\n")));
  observation_.health()->Set(Probe::kReady, {false, "stopping"});
  EXPECT_THAT(Get("/readyz"), AllOf(HasSubstr(" 503 "), EndsWith("\r\n\r\nstopping\n")));
}

TEST_F(ObservationTest, MetricsAreThoseOfTheProcess) {
  observation_.metrics()->GetCounter("tandem_things_total", "Things.")->Add(12);
  const std::string page = Get("/metrics");
  EXPECT_THAT(page, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("\ntandem_things_total 12\n"));
  EXPECT_THAT(page, ContainsRegex("tandem_build_info\\{.*role=\"rollout_server\".*\\} 1\n"));
  EXPECT_THAT(page, ContainsRegex("\nprocess_resident_memory_bytes [1-9]"));
  EXPECT_THAT(page, ContainsRegex("\nprocess_cpu_seconds_total [0-9]"));
  EXPECT_THAT(page, ContainsRegex("\nprocess_open_fds [1-9]"));
  EXPECT_THAT(page, ContainsRegex("\nprocess_start_time_seconds 1[0-9]{9}"));
}

TEST_F(ObservationTest, LogsComeBehindTheirNumbersAndCanBeFollowed) {
  log::Info("one before");
  const int64_t before = log::LastLines(1).at(0).number;
  log::Info("one more", {{"step", 4}});
  log::Info("the last");
  EXPECT_THAT(Get("/logs?lines=1"), AllOf(HasSubstr(std::to_string(before + 2) + " 20"),
                                          EndsWith("the last\n"), Not(HasSubstr("one more"))));
  EXPECT_THAT(Get("/logs?after=" + std::to_string(before)),
              AllOf(HasSubstr("one more step=4\n"), Not(HasSubstr("one before"))));
  EXPECT_THAT(Get("/logs?after=" + std::to_string(before + 2)), EndsWith("\r\n\r\n"));
  EXPECT_THAT(Get("/logs?lines=-3"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("/logs?after=now"), StartsWith("HTTP/1.1 400 "));
}

TEST_F(ObservationTest, OnlyReadingIsAllowedAndOnlyOfWhatIsThere) {
  const int port = observation_.port();
  EXPECT_THAT(HttpExchange(port, "HEAD /livez HTTP/1.1\r\nHost: h\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 9\r\n"),
                    EndsWith("\r\n\r\n")));
  for (const std::string method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
    EXPECT_THAT(
        HttpExchange(port, method + " /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"),
        AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")))
        << method;
  }
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/metrics/more"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/../../etc/passwd"), Not(HasSubstr("root:")));
}

TEST_F(ObservationTest, ARequestOverFourKibibytesIsRefused) {
  const std::string reply =
      HttpExchange(observation_.port(),
                   "GET /livez HTTP/1.1\r\nHost: h\r\nX: " + std::string(8192, 'x') + "\r\n\r\n");
  EXPECT_THAT(reply, Not(HasSubstr(" 200 "))) << reply;
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 ")) << "the next one is answered";
}

TEST_F(ObservationTest, MoreClientsThanThreadsAreAllAnswered) {
  std::vector<std::thread> clients;
  std::vector<std::string> replies(16);
  for (std::string& reply : replies) {
    clients.emplace_back([&] { reply = Get("/metrics"); });
  }
  for (std::thread& client : clients) client.join();
  for (const std::string& reply : replies) EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 "));
}

// Asks for the log and reads only the beginning of the answer; the rest exceeds the kernel's
// buffers of the connection.
class SlowReader {
 public:
  explicit SlowReader(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int few_bytes = 4096;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &few_bytes, sizeof(few_bytes));
    const timeval patience = {.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string request = "GET /logs?lines=2000 HTTP/1.1\r\nHost: h\r\n\r\n";
    EXPECT_EQ(::send(fd_, request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
    char begin[12];
    EXPECT_EQ(::recv(fd_, begin, sizeof(begin), MSG_WAITALL), std::ssize(begin));
    status_.assign(begin, sizeof(begin));
  }
  ~SlowReader() { ::close(fd_); }

  const std::string& status() const { return status_; }

 private:
  const int fd_;
  std::string status_;
};

TEST(ObserveServerTest, SlowReadersOfTheLogKeepNoProbeWaiting) {
  for (size_t i = 0; i < log::kRememberedLines; ++i) log::Info(std::string(5000, 'x'));
  const MetricsRegistry metrics;
  Health health;
  health.Set(Probe::kReady, {true, "ready"});
  // With this patience, no client is cut off during the test, however busy the machine is.
  const auto server = ObserveServer::Listen("127.0.0.1:0", &metrics, &health, absl::Minutes(10));
  ASSERT_THAT(server, IsOk());
  const int port = (*server)->port();
  std::vector<std::unique_ptr<SlowReader>> readers;
  for (int i = 0; i < ObserveServer::kThreadsForPages; ++i) {
    readers.push_back(std::make_unique<SlowReader>(port));
    ASSERT_EQ(readers.back()->status(), "HTTP/1.1 200") << i;
  }
  EXPECT_THAT(HttpGet(port, "/metrics"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too many readers")));
  EXPECT_THAT(HttpGet(port, "/readyz"), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("ready\n")));
  EXPECT_THAT(HttpGet(port, "/livez"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(HttpGet(port, "/startupz"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(ObservationTest, AnAddressInUseOrOfNoFormIsRefusedByName) {
  Observation other("trainer");
  const std::string address = "127.0.0.1:" + std::to_string(observation_.port());
  EXPECT_THAT(other.Serve(address), FailsWith(absl::StatusCode::kUnavailable, address));
  for (const std::string bad : {"9400", "host:", ":9400", "127.0.0.1:99999", "127.0.0.1:9400s",
                                "127.0.0.1:1,127.0.0.1:2"}) {
    EXPECT_THAT(other.Serve(bad), FailsWith(absl::StatusCode::kInvalidArgument, bad)) << bad;
  }
  EXPECT_THAT(other.Serve(""), IsOk());
  EXPECT_EQ(other.port(), 0) << "an empty address listens nowhere";
}

}  // namespace
}  // namespace tandem
