#include "trainer/rank_orders.h"

#include <algorithm>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/comm/group.h"
#include "proto/experience.pb.h"
#include "trainer/run_error.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;

constexpr absl::Duration kAsk = absl::Seconds(1);
constexpr absl::Duration kLongestFarewell = absl::Seconds(10);

std::string NameOf(int64_t number) { return absl::StrCat("order/", number); }
std::string EndOf(int rank) { return absl::StrCat("order/ended/", rank); }

std::span<std::byte> BytesOf(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

// Groups one after the other, each behind its length in eight bytes.
std::string Serialize(const std::vector<ScoredGroup>& groups) {
  std::string bytes;
  for (const ScoredGroup& group : groups) {
    const std::string one = group.SerializeAsString();
    const auto length = static_cast<uint64_t>(one.size());
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes += one;
  }
  return bytes;
}

absl::StatusOr<std::vector<ScoredGroup>> Parse(const std::string& bytes) {
  std::vector<ScoredGroup> groups;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    bytes.copy(reinterpret_cast<char*>(&length), sizeof(length), at);
    at += sizeof(length);
    if (!groups.emplace_back().ParseFromArray(bytes.data() + at, static_cast<int>(length))) {
      return absl::InternalError("groups from rank 0 do not parse");
    }
    at += length;
  }
  return groups;
}

// From rank 0 to all, through a copy: it may be a live weight.
absl::Status SendTensor(comm::Collective& group, const HostTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes.begin(), tensor.bytes.end());
  return comm::BroadcastBytes(group, bytes, 0);
}

// The other ranks. Their own tensors say which there are: one model, one order.
absl::StatusOr<HostTensor> ReceiveTensor(comm::Collective& group, const TensorSpec& spec) {
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(spec.num_bytes()));
  TANDEM_RETURN_IF_ERROR(comm::BroadcastBytes(group, *bytes, 0));
  return HostTensor{spec, *bytes, bytes};
}

// The optimizer's `state` to all, one tensor at a time in the order of `wanted`.
absl::Status SendState(comm::Collective& group, const std::vector<TensorSource>& state,
                       const std::vector<TensorSource>& wanted) {
  std::map<std::string, const TensorSource*> by_name;
  for (const TensorSource& source : state) by_name[source.spec.name] = &source;
  for (const TensorSource& source : wanted) {
    TANDEM_ASSIGN_OR_RETURN(const HostTensor tensor, by_name.at(source.spec.name)->read());
    TANDEM_RETURN_IF_ERROR(SendTensor(group, tensor));
  }
  return absl::OkStatus();
}

class LeadingLearner : public Learner {
 public:
  LeadingLearner(std::unique_ptr<Learner> own, const Ranks& ranks)
      : own_(std::move(own)), ranks_(ranks) {}
  // The store may end with this process: the others get to read the order first. Those who cannot
  // be told any more find out by themselves.
  ~LeadingLearner() override {
    if (!Order("end").ok() || lost_) return;
    const absl::Time end = absl::Now() + kLongestFarewell;
    for (int rank = 1; rank < ranks_.size; ++rank) {
      const auto left = std::max(end - absl::Now(), absl::ZeroDuration());
      ranks_.store.Get(EndOf(rank), left).status().IgnoreError();
    }
  }

  absl::StatusOr<LearnerReport> Train(const std::vector<ScoredGroup>& groups,
                                      WeightVersion version) override {
    std::string bytes = Serialize(groups);
    TANDEM_RETURN_IF_ERROR(Order(absl::StrCat("train ", version.value, " ", bytes.size())));
    TANDEM_RETURN_IF_ERROR(Lost(comm::BroadcastBytes(*ranks_.group, BytesOf(bytes), 0)));
    absl::StatusOr<LearnerReport> report = own_->Train(groups, version);
    if (report.ok()) return report;
    return Lost(report.status());
  }

  absl::Status Restore(const LearnerState& state) override {
    TANDEM_RETURN_IF_ERROR(own_->Restore(state));
    TANDEM_RETURN_IF_ERROR(Order(absl::StrCat("restore ", state.num_updates)));
    TANDEM_ASSIGN_OR_RETURN(const LearnerState saved, own_->Save());
    for (const HostTensor& tensor : saved.weights) {
      TANDEM_RETURN_IF_ERROR(Lost(SendTensor(*ranks_.group, tensor)));
    }
    return Lost(SendState(*ranks_.group, state.optimizer, saved.optimizer));
  }

  // Moments are gathered one at a time, each by an order of its own: whoever reads them may stop in
  // the middle.
  absl::StatusOr<LearnerState> Save() override {
    TANDEM_ASSIGN_OR_RETURN(LearnerState state, own_->Save());
    for (size_t i = 0; i < state.optimizer.size(); ++i) {
      auto& read = state.optimizer[i].read;
      read = [this, i, own = std::move(read)]() -> absl::StatusOr<HostTensor> {
        TANDEM_RETURN_IF_ERROR(Order(absl::StrCat("gather ", i)));
        absl::StatusOr<HostTensor> tensor = own();
        if (tensor.ok()) return tensor;
        return Lost(tensor.status());
      };
    }
    return state;
  }

  // What changes nothing is rank 0's alone.
  absl::StatusOr<GroupLogprobs> Score(const std::vector<ScoredGroup>& groups,
                                      const ScoredWeights& weights) override {
    return own_->Score(groups, weights);
  }
  absl::StatusOr<double> DistanceFromStart() const override { return own_->DistanceFromStart(); }
  absl::StatusOr<CastWeights> Cast(DType dtype) override { return own_->Cast(dtype); }
  int64_t num_parameters() const override { return own_->num_parameters(); }
  std::string library_version() const override { return own_->library_version(); }

 private:
  // The loop knows UNAVAILABLE as a server that is lost.
  absl::Status Lost(absl::Status status) {
    lost_ = lost_ || !status.ok();
    return absl::IsUnavailable(status) ? WithExitCode(std::move(status), ExitCode::kRankLost)
                                       : status;
  }

  absl::Status Order(const std::string& head) {
    return Lost(ranks_.store.Set(NameOf(++number_), head));
  }

  const std::unique_ptr<Learner> own_;
  const Ranks ranks_;
  int64_t number_ = 0;
  bool lost_ = false;  // a step failed: who is left may not answer
};

// Waits for an order. The store is asked by a thread of its own, so that rank 0 may hang and this
// one does not.
absl::StatusOr<std::string> NextOrder(const Ranks& ranks, int64_t number, const StopSignal& stop) {
  absl::Time stopped = absl::InfiniteFuture();
  for (;;) {
    auto asked = std::make_shared<std::promise<absl::StatusOr<std::string>>>();
    auto answer = asked->get_future();
    std::thread([store = ranks.store, asked, number] {
      asked->set_value(store.Get(NameOf(number), kAsk));
    }).detach();
    if (answer.wait_for(absl::ToChronoMilliseconds(ranks.patience)) != std::future_status::ready) {
      return absl::UnavailableError(absl::StrCat("rank 0 did not answer for ",
                                                 absl::FormatDuration(ranks.patience),
                                                 ": stopped or cut off"));
    }
    absl::StatusOr<std::string> order = answer.get();
    if (order.ok() || !absl::IsDeadlineExceeded(order.status())) return order;
    // Rank 0 was asked to stop too, and may have a checkpoint to write.
    if (stop.Requested() && stopped == absl::InfiniteFuture()) stopped = absl::Now();
    if (absl::Now() - stopped > ranks.patience) {
      return absl::CancelledError("stopped, and rank 0 did not say so");
    }
  }
}

absl::Status TrainAsOrdered(Learner& own, const Ranks& ranks,
                            const std::vector<std::string>& words) {
  WeightVersion version;
  int64_t size = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[1], &version.value) ||
      !absl::SimpleAtoi(words[2], &size)) {
    return absl::InternalError(absl::StrCat("an order of ", words.size(), " words"));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  TANDEM_RETURN_IF_ERROR(comm::BroadcastBytes(*ranks.group, BytesOf(bytes), 0));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<ScoredGroup> groups, Parse(bytes));
  return own.Train(groups, version).status();
}

absl::Status RestoreAsOrdered(Learner& own, const Ranks& ranks,
                              const std::vector<std::string>& words) {
  TANDEM_ASSIGN_OR_RETURN(LearnerState state, own.Save());
  if (words.size() != 2 || !absl::SimpleAtoi(words[1], &state.num_updates)) {
    return absl::InternalError("an order to restore without its number");
  }
  for (HostTensor& tensor : state.weights) {
    TANDEM_ASSIGN_OR_RETURN(tensor, ReceiveTensor(*ranks.group, tensor.spec));
  }
  for (TensorSource& source : state.optimizer) {
    source.read = [&ranks, spec = source.spec] { return ReceiveTensor(*ranks.group, spec); };
  }
  return own.Restore(state);
}

// `sources`: the own state's, made when they are first asked for.
absl::Status GatherAsOrdered(Learner& own, const std::vector<std::string>& words,
                             std::vector<TensorSource>& sources) {
  if (sources.empty()) {
    TANDEM_ASSIGN_OR_RETURN(LearnerState state, own.Save());
    sources = std::move(state.optimizer);
  }
  size_t index = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[1], &index) || index >= sources.size()) {
    return absl::InternalError("an order to gather a tensor that is not there");
  }
  return sources[index].read().status();
}

}  // namespace

std::unique_ptr<Learner> LeadRanks(std::unique_ptr<Learner> own, const Ranks& ranks) {
  return std::make_unique<LeadingLearner>(std::move(own), ranks);
}

absl::Status FollowOrders(Learner& own, const Ranks& ranks, const StopSignal& stop) {
  std::vector<TensorSource> sources;
  for (int64_t number = 1;; ++number) {
    TANDEM_ASSIGN_OR_RETURN(const std::string order, NextOrder(ranks, number, stop));
    const std::vector<std::string> words = absl::StrSplit(order, ' ');
    log::Debug("an order of rank 0", {{"number", number}, {"order", order}});
    if (words[0] == "end") return ranks.store.Set(EndOf(ranks.rank), "");
    TANDEM_RETURN_IF_ERROR(words[0] == "train"    ? TrainAsOrdered(own, ranks, words)
                           : words[0] == "gather" ? GatherAsOrdered(own, words, sources)
                                                  : RestoreAsOrdered(own, ranks, words));
  }
}

}  // namespace tandem::trainer
