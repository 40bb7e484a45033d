#include "rollout_server/push_seat.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "common/comm/store.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;

// Longer than anybody waits for a test that hangs.
constexpr absl::Duration kDeadline = absl::Minutes(30);

comm::PushSeatOffer OfferAt(int port) {
  return {.run_id = "run",
          .epoch = 1,
          .membership = 1,
          .store_host = "127.0.0.1",
          .store_port = port,
          .rank = 1,
          .members = {"trainer", "server"},
          .deadline = kDeadline};
}

TEST(PushSeatTest, LeaveEndsAJoinThatWaitsForTheTrainersWord) {
  const auto store = comm::Store::Host(0, comm::Reach::kMachine);
  ASSERT_TRUE(store.ok()) << store.status();
  PushSeat seat;
  auto joined = std::async(std::launch::async, [&] { return seat.Join(OfferAt(store->port())); });
  // It has taken its seat when it says so in the store.
  ASSERT_TRUE(store->Under("seats/push/run/1/1").Get("seat/1", absl::Minutes(2)).ok());
  seat.Leave("the server stops");
  EXPECT_THAT(joined.get(), FailsWith(absl::StatusCode::kAborted, "the server stops"));
}

// Listens, and never says a word: a trainer that was stopped.
class SilentListener {
 public:
  SilentListener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(fd_, any, length), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    EXPECT_EQ(getsockname(fd_, any, &length), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentListener() { close(fd_); }

  int port() const { return port_; }
  void WaitForSomebody() { caller_ = accept(fd_, nullptr, nullptr); }

 private:
  const int fd_;
  int port_ = 0, caller_ = -1;  // kept open
};

TEST(PushSeatTest, LeaveEndsAJoinThatHangsInTheTrainersStore) {
  SilentListener trainer;
  PushSeat seat;
  auto joined = std::async(std::launch::async, [&] { return seat.Join(OfferAt(trainer.port())); });
  trainer.WaitForSomebody();
  seat.Leave("another epoch began");
  EXPECT_THAT(joined.get(), FailsWith(absl::StatusCode::kAborted, "another epoch began"));
}

}  // namespace
}  // namespace tandem::rollout
