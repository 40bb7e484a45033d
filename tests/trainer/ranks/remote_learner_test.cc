// Commands of rank 0 to the other ranks, which are threads of this process here, joined by a real
// store and real Gloo connections.
#include "trainer/ranks/remote_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/comm/group.h"
#include "tests/support/status_matchers.h"
#include "trainer/ranks/command_follower.h"
#include "trainer/ranks/rank_commands.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;

// What the learners of all ranks did, by rank.
class Journal {
 public:
  explicit Journal(int num_ranks) : lines_(static_cast<size_t>(num_ranks)) {}
  void Write(int rank, const std::string& line) {
    MutexLock lock(&mu_);
    lines_[static_cast<size_t>(rank)].push_back(line);
  }
  std::vector<std::string> Read(int rank) {
    MutexLock lock(&mu_);
    return lines_[static_cast<size_t>(rank)];
  }

 private:
  Mutex mu_;
  std::vector<std::vector<std::string>> lines_ ABSL_GUARDED_BY(mu_);
};

constexpr int kBytes = 4;

// Writes down what it is told. Its one weight and its one moment are read by all ranks.
class JournalLearner : public Learner {
 public:
  JournalLearner(int rank, Journal* journal) : rank_(rank), journal_(journal) {}

  absl::StatusOr<LearnerReport> Train(const std::vector<experience::v1::ScoredGroup>& groups,
                                      WeightVersion version) override {
    Write(absl::StrCat("train ", version.value, ":", Ids(groups)));
    return LearnerReport{.num_tokens = 3};
  }
  absl::StatusOr<GroupLogprobs> Score(const std::vector<experience::v1::ScoredGroup>& groups,
                                      const ScoredWeights& weights) override {
    Write(absl::StrCat(
        "score", Ids(groups), " kept ", weights.masters == nullptr ? 0 : weights.masters->number,
        weights.as_bf16 ? " bf16 " : " fp32 ", std::string(RoundingName(weights.rounding))));
    return GroupLogprobs{};
  }
  absl::StatusOr<double> DistanceFromStart() const override {
    Write("distance");
    return 0.5;
  }
  absl::StatusOr<CastWeights> Cast(DType dtype) override {
    Write(absl::StrCat("cast ", std::string(DTypeName(dtype))));
    return CastWeights{.tensors = {Source("cast")}};
  }
  absl::StatusOr<KeptMasters> Keep() override {
    Write("keep");
    const auto drop = [this](const int* owner) {
      Write("dropped");
      delete owner;
    };
    return KeptMasters{7, {Source("kept")}, std::shared_ptr<const int>(new int(0), drop)};
  }
  absl::StatusOr<LearnerState> Save() override {
    return LearnerState{{Source("weight")}, {Source("moment")}, 0};
  }
  absl::Status Restore(const LearnerState& state) override {
    std::string line = absl::StrCat("restore ", state.num_updates);
    for (const auto& [name, value] : state.numbers) absl::StrAppend(&line, " ", name, "=", value);
    for (const auto* sources : {&state.weights, &state.optimizer}) {
      for (const TensorSource& source : *sources) {
        const auto tensor = source.read();
        if (!tensor.ok()) return tensor.status();
        absl::StrAppend(&line, " ", source.spec.name, "=",
                        std::to_integer<int>(tensor->bytes.front()));
      }
    }
    Write(line);
    return absl::OkStatus();
  }
  std::string StartDigest() const override { return ""; }
  int64_t num_parameters() const override { return 1; }
  std::string library_version() const override { return ""; }
  std::string kernels() const override { return ""; }

 private:
  static std::string Ids(const std::vector<experience::v1::ScoredGroup>& groups) {
    std::string ids;
    for (const auto& group : groups) absl::StrAppend(&ids, " ", group.group_id());
    return ids;
  }
  void Write(const std::string& line) const { journal_->Write(rank_, line); }
  TensorSource Source(const std::string& name) const {
    TensorSource source = {.spec = {name, DType::kF32, {1}}};
    source.read = [this, name, spec = source.spec]() -> absl::StatusOr<HostTensor> {
      Write("read " + name);
      auto bytes = std::make_shared<std::vector<std::byte>>(kBytes, std::byte{9});
      return HostTensor{spec, *bytes, bytes};
    };
    return source;
  }

  const int rank_;
  Journal* const journal_;
};

experience::v1::ScoredGroup Group(int64_t id) {
  experience::v1::ScoredGroup group;
  group.set_group_id(id);
  return group;
}

using Lead = std::function<void(std::unique_ptr<Learner> own, const RankLink& link)>;

// `lead` on rank 0 while the other ranks follow its commands; what each of those returned.
std::vector<absl::Status> OnRanks(int num_ranks, bool shard_parameters, Journal* journal,
                                  const Lead& lead) {
  const auto store = comm::Store::Host(0, comm::Reach::kMachine).value();
  const StopSignal stop;
  std::vector<absl::Status> statuses(static_cast<size_t>(num_ranks));
  const auto run_rank = [&](int rank) {
    const auto own_store =
        comm::Store::Connect("127.0.0.1", store.port(), absl::Seconds(10)).value();
    comm::GroupOptions group{.name = "train", .rank = rank, .deadline = absl::Seconds(60)};
    for (int r = 0; r < num_ranks; ++r) group.members.push_back(absl::StrCat("thread:", r));
    const auto collective = comm::JoinGroup(comm::Backend::kGloo, own_store, group).value();
    const RankLink link = {.rank = rank,
                           .size = num_ranks,
                           .collective = collective.get(),
                           .store = own_store,
                           .patience = absl::Seconds(20),
                           .shard_parameters = shard_parameters};
    auto learner = std::make_unique<JournalLearner>(rank, journal);
    if (rank == 0) return lead(std::move(learner), link);
    Heartbeat heartbeat;
    statuses[static_cast<size_t>(rank)] = FollowCommands(*learner, link, stop, heartbeat);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

// The same with the learner of all ranks.
std::vector<absl::Status> OnRanks(int num_ranks, bool shard_parameters, Journal* journal,
                                  const std::function<void(Learner&)>& lead) {
  return OnRanks(num_ranks, shard_parameters, journal,
                 [&](std::unique_ptr<Learner> own, const RankLink& link) {
                   lead(*LeadRanks(std::move(own), link));
                 });
}

TEST(RemoteLearner, AllRanksDoWhatRank0DoesWithTheSameArguments) {
  Journal journal(3);
  const auto statuses = OnRanks(3, false, &journal, [](Learner& all) {
    EXPECT_EQ(all.Train({Group(5), Group(6)}, WeightVersion{4})->num_tokens, 3);
    const KeptMasters kept = all.Keep().value();
    const ScoredWeights weights = {
        .masters = &kept, .as_bf16 = true, .rounding = Rounding::kDither};
    EXPECT_THAT(all.Score({Group(8)}, weights), IsOk());
    EXPECT_THAT(all.Score({}, {.rounding = Rounding::kNearest}), IsOk());
    EXPECT_EQ(all.DistanceFromStart().value(), 0.5);
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(journal.Read(rank),
                ElementsAre("train 4: 5 6", "keep", "score 8 kept 7 bf16 dither",
                            "score kept 0 fp32 nearest", "distance", "dropped"));
  }
}

TEST(RemoteLearner, ATensorThatIsReadIsReadByAllRanks) {
  Journal journal(2);
  OnRanks(2, true, &journal, [](Learner& all) {
    const CastWeights cast = all.Cast(DType::kBF16).value();
    const KeptMasters kept = all.Keep().value();
    EXPECT_THAT(kept.tensors[0].read(), IsOk());
    EXPECT_THAT(cast.tensors[0].read(), IsOk());
    EXPECT_THAT(all.Save()->optimizer[0].read(), IsOk());
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(journal.Read(rank), ElementsAre("cast BF16", "keep", "read kept", "read cast",
                                                "read moment", "dropped"));
  }
}

TEST(RemoteLearner, MastersThatNobodyReadsAnyMoreAreDroppedOnAllRanksBeforeTheNextCommand) {
  Journal journal(2);
  OnRanks(2, false, &journal, [](Learner& all) {
    EXPECT_THAT(all.Keep(), IsOk());
    EXPECT_EQ(all.DistanceFromStart().value(), 0.5);
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(journal.Read(rank), ElementsAre("keep", "dropped", "distance"));
  }
}

HostTensor SavedTensor(const std::string& name, int byte) {
  auto bytes = std::make_shared<std::vector<std::byte>>(kBytes, static_cast<std::byte>(byte));
  return HostTensor{{name, DType::kF32, {1}}, *bytes, bytes};
}

TEST(RemoteLearner, AllRanksRestoreTheTensorsThatRank0Has) {
  Journal journal(3);
  OnRanks(3, false, &journal, [](Learner& all) {
    const LearnerState state = {{Present(SavedTensor("weight", 5))},
                                {Present(SavedTensor("moment", 6))},
                                /*num_updates=*/12,
                                {{"beta", 0.25}}};
    EXPECT_THAT(all.Restore(state), IsOk());
  });
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(journal.Read(rank), ElementsAre("restore 12 beta=0.25 weight=5 moment=6"));
  }
}

TEST(RankCommands, TheLastReaderDeletesTheCommand) {
  const auto store = comm::Store::Host(0, comm::Reach::kMachine).value();
  const StopSignal stop;
  const RankLink link = {.rank = 1, .size = 3, .store = store, .patience = absl::Seconds(20)};
  CommandSender sender(store);
  ranks::v1::Command command;
  command.mutable_drop()->set_set(11);
  ASSERT_THAT(sender.Send(command), IsOk());
  CommandPoller first(link), second(link);
  EXPECT_EQ(first.Next(stop)->drop().set(), 11);
  EXPECT_TRUE(store.Has("commands/1").value());
  EXPECT_EQ(second.Next(stop)->drop().set(), 11);
  EXPECT_FALSE(store.Has("commands/1").value());
  EXPECT_FALSE(store.Has("commands/1/readers").value());
}

TEST(RankCommands, ARankThatIsAskedToStopSaysSoAndWaitsForRank0AsLongAsItIsPatient) {
  const auto store = comm::Store::Host(0, comm::Reach::kMachine).value();
  StopSignal stop;
  stop.Request();
  const RankLink link = {.rank = 1, .size = 2, .store = store, .patience = absl::Seconds(2)};
  EXPECT_FALSE(StopAsked(link).value());
  CommandPoller poller(link);
  EXPECT_THAT(poller.Next(stop),
              FailsWith(absl::StatusCode::kCancelled, "stopped, and rank 0 did not say so"));
  EXPECT_TRUE(StopAsked(link).value());
}

TEST(RankCommands, ACommandThatCannotBeDoneEndsTheRank) {
  ranks::v1::Command read;
  read.mutable_read()->set_set(3);
  const std::pair<ranks::v1::Command, std::string> cases[] = {
      {{}, "rank 0 sent a command that is unknown here"},
      {read, "rank 0 reads tensor 0 of set 3, which is not there"}};
  for (const auto& [command, message] : cases) {
    Journal journal(2);
    const auto statuses =
        OnRanks(2, false, &journal, [&](std::unique_ptr<Learner>, const RankLink& link) {
          EXPECT_THAT(CommandSender(link.store).Send(command), IsOk());
        });
    EXPECT_THAT(statuses[1], FailsWith(absl::StatusCode::kInternal, message));
  }
}

}  // namespace
}  // namespace tandem::trainer
