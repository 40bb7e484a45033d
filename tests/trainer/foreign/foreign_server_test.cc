#include "trainer/foreign/foreign_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <latch>
#include <memory>
#include <thread>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"
#include "tests/trainer/foreign/fake_vllm.h"

namespace tandem::trainer {
namespace {

using absl::StatusCode::kAborted;
using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kUnavailable;
using ::tandem::testing::FailsWith;
using ::tandem::testing::FakeVllm;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::WaitUntil;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kFirstPush[] = {1, 2, 3};

class ForeignServerTest : public ::testing::Test {
 protected:
  ForeignServerTest() {
    std::filesystem::create_directories(directory_ / "model");
    EXPECT_THAT(WriteFileAtomically(directory_ / "model/config.json", "{}"), IsOk());
    tokenizer_ = Tokenizer::Load(TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer").value();
    Start({});
  }

  void Start(ForeignRun run) {
    run.model = directory_ / "model";
    run.weights_dir = directory_ / "weights";
    run.tokenizer = tokenizer_.get();
    server_ = std::make_unique<ForeignServer>(vllm_.address(), run);
    // What the server's /tokenize answers when it has the trainer's tokenizer.
    vllm_.set_tokens(server_->probe_ids());
  }

  // Sends a version whose bytes depend on `value`.
  absl::Status Push(int64_t version, float value = 1) {
    const float values[] = {value, 2, 3};
    const auto bytes = std::as_bytes(std::span(values));
    weights::v1::BeginUpdateRequest begin;
    begin.mutable_manifest()->set_version(version);
    weights::v1::TensorSpec* const spec = begin.mutable_manifest()->add_tensors();
    spec->set_name("a");
    spec->set_dtype("F32");
    spec->add_shape(3);
    if (const absl::Status begun = server_->Begin(begin); !begun.ok()) return begun;
    weights::v1::PushChunksRequest chunk;
    chunk.set_version(version);
    chunk.set_data(bytes.data(), bytes.size());
    if (const absl::Status kept = server_->Receive(chunk); !kept.ok()) return kept;
    weights::v1::CommitUpdateRequest commit;
    commit.set_run_id("run");
    commit.set_epoch(2);
    commit.set_version(version);
    weights::v1::TensorDigest* const digest = commit.add_digests();
    digest->set_name("a");
    digest->set_xxh3_128(Digest128(bytes));
    return server_->Commit(commit).status();
  }

  static rollout::v1::GenerateGroupRequest Group(int64_t min_version = 0) {
    rollout::v1::GenerateGroupRequest request;
    request.add_prompt_token_ids(7);
    request.set_num_completions(2);
    request.set_min_weight_version(min_version);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_max_new_tokens(4);
    return request;
  }

  void Claim() {
    weights::v1::InitTransferRequest claim;
    claim.set_run_id("run");
    claim.set_epoch(2);
    EXPECT_THAT(server_->Claim(claim), IsOk());
  }

  TempDir directory_;
  std::unique_ptr<Tokenizer> tokenizer_;
  FakeVllm vllm_;
  std::unique_ptr<ForeignServer> server_;
};

TEST_F(ForeignServerTest, AServerSaysWhatItIs) {
  const auto info = server_->Info();
  ASSERT_THAT(info, IsOk());
  EXPECT_EQ(info->server_version(), "vllm 0.32.0");
  EXPECT_EQ(info->numerics(), "foreign");
  EXPECT_EQ(info->dtype(), "fp32");
  EXPECT_EQ(info->max_context_tokens(), 64);
  EXPECT_EQ(info->tokenizer_hash(), tokenizer_->hash());
  EXPECT_EQ(info->owner_run_id(), "");
  EXPECT_EQ(info->in_flight(), "drain");
}

TEST_F(ForeignServerTest, AServerWithoutWhatTrainingNeedsIsRefusedWithWhatToSet) {
  vllm_.set_tokens({1, 2, 3});
  EXPECT_THAT(server_->Info(), FailsWith(kInvalidArgument, "another tokenizer (/models/m)"));
  vllm_.set_tokens(server_->probe_ids());
  vllm_.set_development(false);
  EXPECT_THAT(server_->Info(), FailsWith(kInvalidArgument, "VLLM_SERVER_DEV_MODE=1"));
}

TEST_F(ForeignServerTest, RawLogProbsAreRefusedWhereTheyAreNotThoseThatWereDrawnFrom) {
  vllm_.set_logprobs_mode("raw_logprobs");
  EXPECT_THAT(server_->Info(), IsOk()) << "at temperature 1 both are the same";
  Start({.temperature = 0.7});
  EXPECT_THAT(server_->Info(), FailsWith(kInvalidArgument, "--logprobs-mode processed_logprobs"));
}

TEST_F(ForeignServerTest, WhatTheServerSaysOfItsLogProbsIsTriedToo) {
  Start({.temperature = 0.7});
  // The fake gives -0.5 and -0.25 at any temperature, and scores prompts with -1.
  EXPECT_THAT(server_->Info(), IsOk());
  const auto asked = vllm_.bodies("/v1/completions");
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0]["temperature"], 0.25);
  EXPECT_EQ(asked[1]["prompt"].size(), asked[0]["prompt"].size() + 2);
}

TEST_F(ForeignServerTest, NoGroupIsSampledBeforeTheFirstPush) {
  EXPECT_THAT(server_->Generate(Group(), {}), FailsWith(kFailedPrecondition, "not pushed weights"));
}

TEST_F(ForeignServerTest, APushIsWrittenAndLoadedWhileTheServerIsPaused) {
  Claim();
  ASSERT_THAT(Push(3), IsOk());
  EXPECT_THAT(vllm_.calls(), ElementsAre("/pause", "/collective_rpc", "/reset_prefix_cache",
                                         "/resume", "/update_weight_version"));
  const auto load = vllm_.bodies("/collective_rpc");
  EXPECT_EQ(load[0]["method"], "reload_weights");
  EXPECT_EQ(load[0]["kwargs"]["weights_path"], directory_ / "weights/version_3");
  const auto live = server_->WeightInfo();
  ASSERT_THAT(live, IsOk());
  EXPECT_EQ(live->live_version(), 3);
  EXPECT_EQ(live->epoch(), 2);
  EXPECT_EQ(live->tensors(0).dtype(), "F32");
  EXPECT_EQ(live->live_digests(0).xxh3_128(), Digest128(std::as_bytes(std::span(kFirstPush))));
  EXPECT_FALSE(live->takes_delta());
}

TEST_F(ForeignServerTest, AGroupIsOfTheVersionThatWasLive) {
  ASSERT_THAT(Push(3), IsOk());
  rollout::v1::GenerateGroupRequest request = Group(3);
  request.set_greedy_baseline(true);
  const auto group = server_->Generate(request, {});
  ASSERT_THAT(group, IsOk());
  ASSERT_EQ(group->size(), 3u);
  EXPECT_EQ((*group)[1].index(), 1);
  EXPECT_EQ((*group)[1].version_spans(0).weight_version(), 3);
  EXPECT_THAT((*group)[1].behaviour_logprobs(), ElementsAre(-1.5f, -0.25f));
  EXPECT_TRUE((*group)[2].greedy());
  EXPECT_THAT(server_->Generate(Group(4), {}), FailsWith(kFailedPrecondition, "older than 4"));
}

TEST_F(ForeignServerTest, AServerThatWasStartedAnewIsNobodysAndHasNoKnownWeights) {
  Claim();
  ASSERT_THAT(Push(3), IsOk());
  vllm_.Restart();
  EXPECT_THAT(server_->Generate(Group(), {}), FailsWith(kUnavailable, "started anew"));
  const auto info = server_->Info();
  ASSERT_THAT(info, IsOk());
  EXPECT_EQ(info->owner_run_id(), "");
  EXPECT_EQ(info->live_weight_version(), 0);
  const auto live = server_->WeightInfo();
  ASSERT_THAT(live, IsOk());
  EXPECT_THAT(live->live_digests(), IsEmpty());
  ASSERT_THAT(Push(3), IsOk());
  EXPECT_THAT(server_->Generate(Group(3), {}), IsOk());
}

TEST_F(ForeignServerTest, APushWaitsForGroupsAndGroupsWaitForAPush) {
  ASSERT_THAT(Push(1), IsOk());
  std::latch began(1), goes_on(1);
  vllm_.set_during_group([&]() -> std::string {
    began.count_down();
    goes_on.wait();
    return "stop";
  });
  absl::StatusOr<std::vector<rollout::v1::Completion>> first, second;
  std::thread one([&] { first = server_->Generate(Group(), {}); });
  began.wait();
  std::thread push([&] { EXPECT_THAT(Push(2, 5), IsOk()); });
  ASSERT_TRUE(WaitUntil([&] { return server_->Info()->paused(); }));
  vllm_.set_during_group({});
  std::thread other([&] { second = server_->Generate(Group(), {}); });
  EXPECT_EQ(vllm_.calls().size(), 5u) << "nothing of the second push yet";
  goes_on.count_down();
  for (std::thread* thread : {&one, &push, &other}) thread->join();
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ((*first)[0].version_spans(0).weight_version(), 1);
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ((*second)[0].version_spans(0).weight_version(), 2);
}

TEST_F(ForeignServerTest, APushEndsGroupsWhereItMay) {
  Start({.in_flight = ForeignInFlight::kAbort});
  ASSERT_THAT(Push(1), IsOk());
  std::latch began(1);
  vllm_.set_during_group([&]() -> std::string {
    began.count_down();
    EXPECT_TRUE(WaitUntil([&] { return vllm_.calls().size() == 6; }));
    return "abort";
  });
  absl::StatusOr<std::vector<rollout::v1::Completion>> group;
  std::thread one([&] { group = server_->Generate(Group(), {}); });
  began.wait();
  EXPECT_THAT(Push(2, 5), IsOk());
  one.join();
  EXPECT_THAT(group, FailsWith(kAborted, ""));
}

TEST_F(ForeignServerTest, AServerThatADeadTrainerLeftPausedGoesOn) {
  vllm_.set_paused(true);
  Claim();
  EXPECT_THAT(vllm_.calls(), ElementsAre("/resume"));
}

TEST_F(ForeignServerTest, ACallThatNobodyWaitsForEnds) {
  ASSERT_THAT(Push(1), IsOk());
  // Shared, because the server's thread still waits when the test has ended.
  const auto began = std::make_shared<std::latch>(1), goes_on = std::make_shared<std::latch>(1);
  vllm_.set_during_group([began, goes_on]() -> std::string {
    began->count_down();
    goes_on->wait();
    return "stop";
  });
  EXPECT_THAT(server_->Generate(Group(), [&] { return began->try_wait(); }),
              FailsWith(absl::StatusCode::kCancelled, ""));
  goes_on->count_down();
}

TEST_F(ForeignServerTest, AServerThatKeepsPrefixesOfOtherWeightsHasNoKnownWeights) {
  vllm_.set_prefix_cache_resets(false);
  EXPECT_THAT(Push(1), FailsWith(kUnavailable, "/reset_prefix_cache"));
  EXPECT_EQ(vllm_.calls().back(), "/resume");
  EXPECT_THAT(server_->Generate(Group(), {}), FailsWith(kFailedPrecondition, "not pushed weights"));
}

TEST_F(ForeignServerTest, ADeliveryIsHowFarTheProbeMoved) {
  ASSERT_THAT(Push(0, 1), IsOk());
  ASSERT_THAT(Push(1, 1), IsOk());
  ASSERT_THAT(Push(2, 5), IsOk());
  const std::vector<ForeignDelivery> deliveries = server_->TakeDeliveries();
  ASSERT_EQ(deliveries.size(), 3u);
  const auto num_tokens = std::ssize(server_->probe_ids()) - 1;
  EXPECT_EQ(deliveries[0].bytes, ForeignBytes::kFirst);
  EXPECT_EQ(deliveries[1].bytes, ForeignBytes::kSame);
  EXPECT_EQ(deliveries[2].bytes, ForeignBytes::kOther);
  // Each load takes an eighth of a nat off the fake's scores.
  EXPECT_EQ(deliveries[2].num_tokens, num_tokens);
  EXPECT_EQ(deliveries[2].num_moved, num_tokens);
  EXPECT_NEAR(deliveries[2].mean_abs_change, 0.125, 1e-9);
  EXPECT_NEAR(deliveries[2].max_abs_change, 0.125, 1e-9);
  EXPECT_THAT(server_->TakeDeliveries(), IsEmpty());
}

TEST_F(ForeignServerTest, ChecksumsProveWhatTheServerKeepsAsItWasWritten) {
  // SHA-256 of the little-endian floats 1, 2, 3.
  const std::string right = "8e628779e6a74ee0b36991c10158f63cafec7d340ad4e075592502c8708524dd";
  vllm_.set_checksums({{"tp0:a", right}, {"tp0:packed", "ff"}});
  ASSERT_THAT(Push(1), IsOk());
  const std::vector<ForeignDelivery> deliveries = server_->TakeDeliveries();
  EXPECT_EQ(deliveries[0].num_parameters, 2);
  EXPECT_EQ(deliveries[0].num_proven, 1);
}

TEST_F(ForeignServerTest, AParameterThatWasProvenOnceAndIsNotAnyMoreWasNotDelivered) {
  vllm_.set_checksums(
      {{"tp0:a", "8e628779e6a74ee0b36991c10158f63cafec7d340ad4e075592502c8708524dd"}});
  ASSERT_THAT(Push(1), IsOk());
  EXPECT_THAT(Push(2, 5), FailsWith(absl::StatusCode::kDataLoss, "does not hold tp0:a"));
  EXPECT_THAT(server_->Generate(Group(), {}), FailsWith(kFailedPrecondition, "not pushed weights"));
  // The digest of 5, 2, 3.
  vllm_.set_checksums(
      {{"tp0:a", "0b19cea3df7a35334e772025f2a585ec0e394dadb8d43c5738952eeae5d688f5"}});
  ASSERT_THAT(Push(2, 5), IsOk());
}

TEST_F(ForeignServerTest, ScoresArePromptLogProbsAtTemperature1) {
  ASSERT_THAT(Push(1), IsOk());
  rollout::v1::ScoreRequest request;
  rollout::v1::ScoreSequence* const sequence = request.add_sequences();
  for (const int id : {4, 5, 6}) sequence->add_token_ids(id);
  sequence->set_num_prompt_tokens(2);
  request.set_temperature(1);
  const auto scores = server_->Score(request, {});
  ASSERT_THAT(scores, IsOk());
  EXPECT_EQ(scores->weight_version(), 1);
  EXPECT_THAT(scores->scores(0).logprobs(), ElementsAre(0, 0, -1.125f));
  request.set_temperature(0.7f);
  EXPECT_THAT(server_->Score(request, {}), FailsWith(kInvalidArgument, "temperature 1 alone"));
  request.set_temperature(1);
  request.set_path(rollout::v1::SCORE_PATH_DECODE);
  EXPECT_THAT(server_->Score(request, {}), FailsWith(kInvalidArgument, "prefill"));
}

TEST_F(ForeignServerTest, WhatVllmDoesNotGiveIsNotAskedFor) {
  ASSERT_THAT(Push(1), IsOk());
  rollout::v1::GenerateGroupRequest request = Group();
  request.mutable_sampling()->set_top_k(4);
  request.mutable_sampling()->set_return_support(true);
  EXPECT_THAT(server_->Generate(request, {}), FailsWith(kInvalidArgument, "which ids"));
  weights::v1::BeginUpdateRequest begin;
  begin.mutable_delta()->set_base_version(1);
  EXPECT_THAT(server_->Begin(begin), FailsWith(kInvalidArgument, "whole tensors"));
}

}  // namespace
}  // namespace tandem::trainer
