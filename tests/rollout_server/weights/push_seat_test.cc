#include "rollout_server/weights/push_seat.h"

#include <gtest/gtest.h>

#include <future>

#include "common/rendezvous/store.h"
#include "tests/rollout_server/silent_listener.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;
using testing::SilentListener;

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

absl::Status Offered() { return absl::OkStatus(); }

TEST(PushSeatTest, LeaveEndsAJoinThatWaitsForTheTrainersWord) {
  const auto store = comm::Store::Host(0, comm::Reach::kMachine);
  ASSERT_TRUE(store.ok()) << store.status();
  PushSeat seat;
  auto joined =
      std::async(std::launch::async, [&] { return seat.Join(OfferAt(store->port()), Offered); });
  // It has taken its seat when it says so in the store.
  ASSERT_TRUE(store->Under("seats/push/run/1/1").Get("seat/1", absl::Minutes(2)).ok());
  seat.Leave("the server stops");
  EXPECT_THAT(joined.get(), FailsWith(absl::StatusCode::kAborted, "the server stops"));
}

TEST(PushSeatTest, LeaveEndsAJoinThatHangsInTheTrainersStore) {
  SilentListener trainer;
  PushSeat seat;
  auto joined =
      std::async(std::launch::async, [&] { return seat.Join(OfferAt(trainer.port()), Offered); });
  trainer.WaitForSomebody();
  seat.Leave("another epoch began");
  EXPECT_THAT(joined.get(), FailsWith(absl::StatusCode::kAborted, "another epoch began"));
}

// An epoch begins between the check of the call and the Join: it leaves a seat that is not there
// yet.
TEST(PushSeatTest, AnOfferThatWasTakenBackBeforeTheJoinEndsIt) {
  SilentListener trainer;
  PushSeat seat;
  seat.Leave("another epoch began");
  EXPECT_THAT(seat.Join(OfferAt(trainer.port()),
                        [] { return absl::FailedPreconditionError("epoch 1 is not live"); }),
              FailsWith(absl::StatusCode::kFailedPrecondition, "epoch 1 is not live"));
}

TEST(PushSeatTest, ALeaveJustAfterTheOfferWasFoundGoodEndsTheJoin) {
  SilentListener trainer;
  PushSeat seat;
  EXPECT_THAT(seat.Join(OfferAt(trainer.port()),
                        [&] {
                          seat.Leave("another epoch began");
                          return absl::OkStatus();
                        }),
              FailsWith(absl::StatusCode::kAborted, "another epoch began"));
}

TEST(PushSeatTest, ASeatThatIsClosedIsNotTakenAgain) {
  SilentListener trainer;
  PushSeat seat;
  auto joined =
      std::async(std::launch::async, [&] { return seat.Join(OfferAt(trainer.port()), Offered); });
  trainer.WaitForSomebody();
  seat.Close("the server stops");
  EXPECT_THAT(joined.get(), FailsWith(absl::StatusCode::kAborted, "the server stops"));
  EXPECT_THAT(seat.Join(OfferAt(trainer.port()), Offered),
              FailsWith(absl::StatusCode::kAborted, "the server stops"));
}

}  // namespace
}  // namespace tandem::rollout
