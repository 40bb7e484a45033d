// One rank of a group, for collective_test.py. It meets the other ranks as its environment says,
// then executes its arguments in order and prints a line for each.
//
//   all_reduce | all_reduce_max | broadcast:ROOT | all_gather | reduce_scatter
//   barrier      an all-reduce whose result is not checked
//   bytes:ROOT | device_bytes:ROOT   broadcasts host memory, and device memory
//   start:N      N all-reduces in progress at the same time
//   large:MB     an all-reduce of this many megabytes
//   mark         prints and flushes, for tests that act at this point
//   wait         waits for a line or the end of standard input
//   die          ends at once, without telling the others
//   abort        aborts the group in this process
//   group:NAME:R,R,..   replaces the group by a new one of these ranks
//   record       prints the operations in c10d's flight record
//
// TEST_BACKEND=nccl selects NCCL, on the CUDA device of the local rank.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/comm/backends.h"
#include "common/comm/collective.h"
#include "common/comm/group.h"
#include "common/rendezvous/rendezvous.h"

namespace tandem::comm {
namespace {

std::string Values(const at::Tensor& tensor) {
  std::string text;
  for (int64_t i = 0; i < std::min<int64_t>(tensor.numel(), 8); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", tensor[i].item<double>());
  }
  return text;
}

std::string Outcome(const absl::Status& status, const at::Tensor& tensor) {
  return status.ok() ? Values(tensor) : status.ToString();
}

struct Worker {
  const RankEnvironment self;
  const Rendezvous met;
  const absl::Duration deadline;
  const Backend backend;
  std::unique_ptr<Collective> group;

  at::TensorOptions Floats() const {
    const at::TensorOptions floats = at::TensorOptions().dtype(at::kFloat);
    return backend == Backend::kNccl ? floats.device(at::kCUDA, self.local_rank) : floats;
  }

  // [rank, rank + 1, rank + 2]
  at::Tensor Own() const { return at::arange(group->rank(), group->rank() + 3, Floats()); }

  std::string MakeGroup(const std::string& name, const std::vector<int>& ranks) {
    GroupOptions options{.name = name, .deadline = deadline};
    if (const char* const after = std::getenv("TEST_LAG"); after != nullptr) {
      options.lag = {absl::Seconds(std::atof(after)), [](const std::string& text) {
                       std::cout << absl::StrCat("lag: ", text, "\n") << std::flush;
                     }};
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      options.members.push_back(met.members[static_cast<size_t>(ranks[i])]);
      if (ranks[i] == self.rank) options.rank = static_cast<int>(i);
    }
    auto made = Collective::Make(backend, met.store, options);
    if (!made.ok()) return made.status().ToString();
    group = std::move(*made);
    return absl::StrCat(group->rank(), " of ", group->size());
  }

  std::string Gather() {
    at::Tensor all = at::zeros({3 * group->size()}, Floats());
    return Outcome(group->StartAllGather(Own(), all).Wait(), all);
  }

  // Broadcasts host memory, whatever memory the backend uses.
  std::string SendBytes(int root) {
    std::vector<std::byte> bytes(3, static_cast<std::byte>(10 + group->rank()));
    const absl::Status status = BroadcastBytes(*group, bytes, root);
    if (!status.ok()) return status.ToString();
    return absl::StrJoin(bytes, " ", [](std::string* out, std::byte byte) {
      absl::StrAppend(out, static_cast<int>(byte));
    });
  }

  // Broadcasts memory of the device, if the backend uses one.
  std::string SendDeviceBytes(int root) {
    at::Tensor own = at::full({3}, 10 + group->rank(), Floats().dtype(at::kByte));
    const absl::Status status =
        BroadcastBytes(*group, {static_cast<std::byte*>(own.data_ptr()), 3}, root, Device::kCuda);
    return Outcome(status, own);
  }

  // Rank r gets the sum over ranks of [2 r, 2 r + 1].
  std::string Scatter() {
    at::Tensor all = at::arange(2 * group->size(), Floats());
    at::Tensor part = at::zeros({2}, Floats());
    return Outcome(group->StartReduceScatter(all, part).Wait(), part);
  }

  std::string StartMany(int count) {
    std::vector<at::Tensor> tensors;
    std::vector<Pending> pending;
    for (int i = 0; i < count; ++i) {
      tensors.push_back(at::full({1000}, i + 1.0, Floats()));
      pending.push_back(group->StartAllReduce(tensors.back()));
    }
    std::string text;
    for (int i = 0; i < count; ++i) {
      const absl::Status status = pending[static_cast<size_t>(i)].Wait();
      if (!status.ok()) return status.ToString();
      absl::StrAppend(&text, i == 0 ? "" : " ",
                      tensors[static_cast<size_t>(i)][999].item<double>());
    }
    return text;
  }

  std::string Do(const std::vector<std::string>& words) {
    const std::string& what = words[0];
    const auto number = [&] { return std::atoi(words.at(1).c_str()); };
    at::Tensor own = Own();
    if (what == "all_reduce") return Outcome(group->AllReduce(own), own);
    if (what == "all_reduce_max") return Outcome(group->AllReduce(own, Reduction::kMax), own);
    if (what == "broadcast") return Outcome(group->Broadcast(own, number()), own);
    if (what == "bytes") return SendBytes(number());
    if (what == "device_bytes") return SendDeviceBytes(number());
    if (what == "all_gather") return Gather();
    if (what == "reduce_scatter") return Scatter();
    if (what == "barrier") return group->AllReduce(own).ToString();
    if (what == "start") return StartMany(number());
    if (what == "large") {
      at::Tensor large = at::full({number() * 250000}, 1.0f, Floats());
      return Outcome(group->AllReduce(large), large);
    }
    if (what == "wait") {
      std::string line;
      std::getline(std::cin, line);
      return "done";
    }
    if (what == "mark") return "now";
    if (what == "die") _exit(77);
    if (what == "abort") {
      group->Abort("the test says so");
      return "done";
    }
    if (what == "record") return backend == Backend::kNccl ? NcclFlightRecord() : FlightRecord();
    if (what != "group") return "unknown";
    std::vector<int> ranks;
    for (const std::string& rank : std::vector<std::string>(absl::StrSplit(words.at(2), ','))) {
      ranks.push_back(std::atoi(rank.c_str()));
    }
    return MakeGroup(words.at(1), ranks);
  }
};

int Main(int argc, char** argv) {
  const auto say = [](const std::string& text) { std::cout << text << std::endl; };
  const auto self = ReadRankEnvironment(ProcessEnvironment());
  if (!self.ok()) {
    say(self.status().ToString());
    return 2;
  }
  const auto seconds = [](const char* name, double otherwise) {
    const char* const text = std::getenv(name);
    return absl::Seconds(text == nullptr ? otherwise : std::atof(text));
  };
  const char* const job = std::getenv("TEST_JOB");
  auto met = Meet({.self = *self,
                   .job = job == nullptr ? "test" : job,
                   .deadline = seconds("TEST_MEET_SECONDS", 30),
                   .warn = [&](const std::string& text) { say("warning: " + text); }});
  if (!met.ok()) {
    say(met.status().ToString());
    return 4;
  }
  const char* const name = std::getenv("TEST_BACKEND");
  const Backend backend =
      name != nullptr && std::string(name) == "nccl" ? Backend::kNccl : Backend::kGloo;
  Worker worker{*self, *met, seconds("TEST_SECONDS", 20), backend, nullptr};
  std::vector<int> everyone(met->members.size());
  for (size_t i = 0; i < everyone.size(); ++i) everyone[i] = static_cast<int>(i);
  if (backend == Backend::kNccl && c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    if (self->local_rank < cuda.deviceCount())
      cuda.setDevice({at::kCUDA, static_cast<c10::DeviceIndex>(self->local_rank)});
  }
  say("joined: " + worker.MakeGroup("first", everyone));
  if (!worker.group) return 5;
  for (int i = 1; i < argc; ++i) {
    say(absl::StrCat(argv[i], ": ", worker.Do(absl::StrSplit(argv[i], ':'))));
  }
  return 0;
}

}  // namespace
}  // namespace tandem::comm

int main(int argc, char** argv) { return tandem::comm::Main(argc, argv); }
