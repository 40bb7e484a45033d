#include "common/base/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using testing::FailsWith;
using ::testing::HasSubstr;
using testing::IsOk;

std::string HttpGet(int port, const std::string& path) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string reply;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    EXPECT_EQ(::write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char block[4096];
    for (ssize_t n; (n = ::read(fd, block, sizeof(block))) > 0;) {
      reply.append(block, static_cast<size_t>(n));
    }
  }
  ::close(fd);
  return reply;
}

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameCounter) {
  MetricsRegistry registry;
  Counter* dropped = registry.GetCounter("tandem_drops_total", "Drops.", {{"reason", "stale"}});
  dropped->Add();
  registry.GetCounter("tandem_drops_total", "Drops.", {{"reason", "stale"}})->Add(2);
  registry.GetCounter("tandem_drops_total", "Drops.", {{"reason", "failed"}})->Add(5);
  EXPECT_EQ(dropped->Value(), 3);
  EXPECT_THAT(registry.Render(), HasSubstr("tandem_drops_total{reason=\"stale\"} 3"));
  EXPECT_THAT(registry.Render(), HasSubstr("tandem_drops_total{reason=\"failed\"} 5"));
}

TEST(MetricsTest, RendersGaugesAndHistogramsWithTheirHelp) {
  MetricsRegistry registry;
  registry.GetGauge("tandem_live_version", "Live version.")->Set(4);
  HistogramMetric* lengths = registry.GetHistogram("tandem_length", "Lengths.", {1, 10});
  lengths->Observe(0.5);
  lengths->Observe(5);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("# HELP tandem_live_version Live version."));
  EXPECT_THAT(text, HasSubstr("tandem_live_version 4"));
  EXPECT_THAT(text, HasSubstr("tandem_length_bucket{le=\"1\"} 1"));
  EXPECT_THAT(text, HasSubstr("tandem_length_bucket{le=\"10\"} 2"));
  EXPECT_THAT(text, HasSubstr("tandem_length_sum 5.5"));
}

TEST(MetricsTest, ServesTheTextOverHttpOnAPortItPicked) {
  MetricsRegistry registry;
  registry.GetGauge("tandem_steps", "Steps.")->Set(12);
  const absl::StatusOr<int> port = registry.Serve("127.0.0.1:0");
  ASSERT_THAT(port, IsOk());
  ASSERT_GT(*port, 0);
  EXPECT_THAT(HttpGet(*port, "/metrics"), HasSubstr("tandem_steps 12"));
}

TEST(MetricsTest, AnAddressInUseIsUnavailableByName) {
  MetricsRegistry first, second;
  const absl::StatusOr<int> port = first.Serve("127.0.0.1:0");
  ASSERT_THAT(port, IsOk());
  const std::string address = "127.0.0.1:" + std::to_string(*port);
  EXPECT_THAT(second.Serve(address), FailsWith(absl::StatusCode::kUnavailable, address));
}

TEST(MetricsDeathTest, ABadNameOrOneOfAnotherKindEndsTheProcess) {
  MetricsRegistry registry;
  registry.GetGauge("tandem_x", "X.");
  EXPECT_DEATH(registry.GetCounter("tandem_x", "X."), "TANDEM_CHECK failed");
  EXPECT_DEATH(registry.GetCounter("bad name", "X."), "TANDEM_CHECK failed");
}

}  // namespace
}  // namespace tandem
