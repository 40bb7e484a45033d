#include "trainer/rewards/reward_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/json_service.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/rewards/held_completions.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::JsonService;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::chrono::seconds kPatience(60);

// Rewards by a service that answers 1, but "held" only after Release.
class RewardQueueTest : public ::testing::Test {
 protected:
  RewardQueueTest() {
    RewardOptions options;
    options.weights = {{"http", 1}};
    options.http.client.url = service_.url();
    options.http.batch_size = 1;
    rewards_ = *RewardFunction::Create(options);
    queue_ = std::make_unique<RewardQueue>(rewards_.get(), [this] { ++num_wakes_; });
  }
  ~RewardQueueTest() override { Release(); }

  void Release() {
    if (!released_.try_wait()) released_.count_down();
  }

  absl::Status Submit(const std::string& text) {
    return queue_->Submit(HeldCompletions({text})->inputs(), [this, text](std::vector<Reward> r) {
      done_.push_back(r[0].mask_reason.empty() ? text : r[0].mask_reason);
      return result_;
    });
  }

  std::latch released_{1};
  JsonService service_{[this](const JsonService::Request& request) {
    if (request.body.find("held") != std::string::npos) released_.wait();
    return JsonService::Reply{.body = R"({"rewards":[1]})"};
  }};
  std::unique_ptr<RewardFunction> rewards_;
  std::atomic<int> num_wakes_ = 0;
  std::unique_ptr<RewardQueue> queue_;
  std::vector<std::string> done_;
  absl::Status result_;
};

TEST_F(RewardQueueTest, DeliversWhatIsReadyWhileAnotherGroupIsJudged) {
  ASSERT_THAT(Submit("held"), IsOk());
  ASSERT_THAT(Submit("quick"), IsOk());
  EXPECT_EQ(queue_->num_open(), 2);
  queue_->WaitFor(kPatience);
  ASSERT_THAT(queue_->Deliver(), IsOk());
  EXPECT_THAT(done_, ElementsAre("quick"));
  EXPECT_EQ(queue_->num_open(), 1);
  EXPECT_EQ(num_wakes_, 1);
  Release();
  queue_->WaitFor(kPatience);
  ASSERT_THAT(queue_->Deliver(), IsOk());
  EXPECT_THAT(done_, ElementsAre("quick", "held"));
  EXPECT_THAT(queue_->TakeNumbers().latencies, SizeIs(2));
  EXPECT_THAT(queue_->TakeNumbers().latencies, IsEmpty()) << "since the last call";
}

TEST_F(RewardQueueTest, NothingIsDoneBeforeDeliverAndItsErrorEndsIt) {
  ASSERT_THAT(Submit("a"), IsOk());
  queue_->WaitFor(kPatience);
  EXPECT_THAT(done_, IsEmpty());
  result_ = absl::InternalError("the buffer is full");
  EXPECT_THAT(queue_->Deliver(), FailsWith(absl::StatusCode::kInternal, "the buffer is full"));
}

TEST_F(RewardQueueTest, WhatIsCancelledIsNeverDone) {
  ASSERT_THAT(Submit("held"), IsOk());
  queue_->Cancel();
  EXPECT_EQ(queue_->num_open(), 0);
  ASSERT_THAT(Submit("late"), IsOk());
  queue_->WaitFor(std::chrono::milliseconds(1));
  ASSERT_THAT(queue_->Deliver(), IsOk());
  EXPECT_THAT(done_, IsEmpty());
  EXPECT_EQ(num_wakes_, 0);
}

TEST_F(RewardQueueTest, GroupsUnderWayMayOutliveTheQueue) {
  ASSERT_THAT(Submit("held"), IsOk());
  queue_.reset();
  Release();
  rewards_.reset();
  EXPECT_EQ(num_wakes_, 0);
}

TEST(RewardQueue, BuiltInComponentsAreDoneInPlace) {
  auto rewards = *RewardFunction::Create({.weights = {{"exact_match", 1}}});
  RewardQueue queue(rewards.get(), [] { FAIL() << "nothing to wait for"; });
  double value = 0;
  ASSERT_THAT(queue.Submit(HeldCompletions({"42"})->inputs(),
                           [&](std::vector<Reward> scored) {
                             value = scored[0].value;
                             return absl::OkStatus();
                           }),
              IsOk());
  EXPECT_DOUBLE_EQ(value, 1);
  EXPECT_EQ(queue.num_open(), 0);
}

}  // namespace
}  // namespace tandem::trainer
