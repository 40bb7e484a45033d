#include "trainer/weight_push/delivery.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/formats/plan_text.h"
#include "common/model/formats/stored_tensors.h"
#include "common/process/thread_team.h"

namespace tandem::trainer {

using std::chrono::milliseconds;

namespace {

// The tensors as servers of these formats store them, made by several threads.
absl::StatusOr<std::vector<TensorSource>> StoreAll(std::vector<TensorSource> tensors,
                                                   const QuantisationPlan& plan) {
  std::vector<absl::StatusOr<HostTensor>> stored(tensors.size());
  ThreadTeam team(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  team.Run([&](ThreadTeam::Member& member) {
    member.ForEach(std::ssize(tensors), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      const absl::StatusOr<HostTensor> wide = tensors[at].read();
      stored[at] = wide.ok() ? StoreTensor(*wide, FormatOf(plan, wide->spec.name)) : wide;
    });
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(stored[i].status());
    tensors[i] = Present(*std::move(stored[i]));
  }
  return tensors;
}

const char* TransportOf(const ServerPush& push) {
  if (push.skipped) return "none";
  return push.over_group ? "collective" : "stream";
}

}  // namespace

absl::Status Delivery::WaitForServers(double patience_seconds, bool need_all,
                                      const StopSignal& stop) {
  const double start = MonotonicSeconds();
  double next_warning = 5;
  for (;;) {
    UpdateServers();
    const int answering = static_cast<int>(client_->Behind(milliseconds(50)).size());
    TANDEM_RETURN_IF_ERROR(client_->Health());
    const std::string missing = client_->Missing();
    if (answering > 0 && missing.empty()) return ForwardEvents();
    if (stop.Requested()) return absl::OkStatus();
    const double waited = MonotonicSeconds() - start;
    if (waited > patience_seconds && answering > 0) {
      if (!need_all) return ForwardEvents();
      return Unavailable("only ", answering, " rollout servers answer after ", patience_seconds,
                         " s, and a deterministic run needs ", "all of them: ", missing);
    }
    if (waited > next_warning && answering > 0) {
      next_warning *= 2;
      log::Warning("waiting for the other rollout servers", {{"waited_s", waited},
                                                             {"patience_s", patience_seconds},
                                                             {"answering", answering},
                                                             {"missing", missing}});
    }
    stop.WaitFor(milliseconds(50));
  }
}

void Delivery::UpdateServers() {
  const std::vector<std::string> named = lookup_->Addresses();
  if (const std::string problems = lookup_->Problems(); problems != lookup_problems_) {
    lookup_problems_ = problems;
    if (!problems.empty()) {
      log::Warning("names of trainer.servers have no address", {{"names", problems}});
    }
  }
  for (const std::string& address : named) client_->AddServer(address);
  for (int server = 0; server < client_->num_servers(); ++server) {
    if (client_->IsRetired(server)) continue;
    if (std::ranges::find(named, client_->address(server)) != named.end()) continue;
    client_->Retire(server);
    leaving_.insert(server);
  }
  std::erase_if(leaving_, [&](int server) {
    if (!client_->IsRetired(server)) return true;
    if (!client_->IsLost(server)) return false;
    publisher_->Forget(server);
    return true;
  });
}

absl::StatusOr<DType> Delivery::ServerDType() {
  absl::Status failed = Unavailable("no rollout server answers");
  for (const int server : client_->Behind(milliseconds(0))) {
    absl::StatusOr<DType> dtype = publisher_->ServerDType(server);
    if (dtype.ok()) return dtype;
    failed = std::move(dtype).status();
  }
  return failed;
}

absl::StatusOr<std::string> Delivery::QuantiseFor(const ModelConfig& config) {
  std::set<std::string> formats;
  for (const int server : client_->Behind(milliseconds(0))) {
    const absl::StatusOr<std::string> of_server = publisher_->StoredFormats(server);
    if (of_server.ok()) formats.insert(*of_server);
  }
  if (formats.size() != 1 || formats.begin()->empty()) return "";
  TANDEM_ASSIGN_OR_RETURN(const QuantisationOptions options, OptionsOfPlan(*formats.begin()));
  TANDEM_ASSIGN_OR_RETURN(stored_, MakeQuantisationPlan(config, options));
  return *formats.begin();
}

absl::Status Delivery::ClaimBehind(std::vector<int>* claimed) {
  for (const int server : client_->Behind(milliseconds(0))) {
    const absl::Status status = publisher_->Claim(server);
    if (status.code() == absl::StatusCode::kFailedPrecondition) return status;
    if (status.ok()) {
      claimed->push_back(server);
    } else {
      client_->MarkLost(server, status.ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status Delivery::Settle(const ServerPush& push, PushTotals* totals) {
  const std::string& address = client_->address(push.server);
  const int64_t version = publisher_->version().value;
  if (!push.status.ok()) {
    // It serves another model than the run trains, and no server ever took a version: that is a
    // mistake of whoever started the run, which waiting does not mend.
    if (absl::IsInvalidArgument(push.status) && !delivered_) return push.status;
    client_->MarkLost(push.server, push.status.ToString());
    return events_("push_failed", push.status.ToString(),
                   {{"version", absl::StrCat(version)}, {"server", JsonText(address)}});
  }
  delivered_ = true;
  client_->MarkReady(push.server, push.live_epoch, version);
  totals->bytes += push.bytes;
  if (!push.skipped) totals->dense_bytes += publisher_->num_bytes();
  totals->seconds = std::max(totals->seconds, push.seconds);
  totals->pause_ms = std::max(totals->pause_ms, push.pause_ms);
  if (push.effect.has_value()) {
    totals->effect = push.effect;
    totals->effect->update_norm = cast_.update_norm;
    cast_ = *totals->effect;
  }
  return events_("push_committed",
                 push.skipped ? "the server had these weights already" : "weights delivered",
                 {{"version", absl::StrCat(version)},
                  {"epoch", absl::StrCat(push.live_epoch)},
                  {"server", JsonText(address)},
                  {"digest", JsonText(push.digest)},
                  {"bytes", absl::StrCat(push.bytes)},
                  {"transport", JsonText(TransportOf(push))},
                  {"on_device", push.on_device ? "true" : "false"},
                  {"form", JsonText(push.skipped    ? "none"
                                    : push.effect   ? "adapter"
                                    : push.is_delta ? "delta"
                                                    : "dense")},
                  {"changed_share", JsonNumber(cast_.changed_share)},
                  {"lost_norm", JsonNumber(cast_.lost_norm)},
                  {"arrived_share", JsonNumber(cast_.arrived_share)}});
}

absl::StatusOr<PushTotals> Delivery::Publish(WeightVersion version, CastWeights cast) {
  held_.push_back({version, std::move(cast)});
  if (published_ && static_cast<int64_t>(held_.size()) <= hold_back_) return PushTotals{};
  HeldWeights due = std::move(held_.front());
  held_.pop_front();
  published_ = true;
  cast_ = due.cast.numbers;
  client_->ExpireProofs();
  // Masters on a device are still those of this version where none was held back.
  if (!held_.empty()) due.cast.on_device.reset();
  if (stored_ && due.cast.adapter == nullptr) {
    due.cast.on_device.reset();
    TANDEM_ASSIGN_OR_RETURN(due.cast.tensors, StoreAll(std::move(due.cast.tensors), *stored_));
  }
  TANDEM_RETURN_IF_ERROR(publisher_->SetWeights(due.version, std::move(due.cast.tensors),
                                                std::move(due.cast.on_device),
                                                std::move(due.cast.adapter)));
  std::vector<int> servers;
  TANDEM_RETURN_IF_ERROR(ClaimBehind(&servers));
  for (int i = 0; i < client_->num_servers(); ++i) {
    if (client_->IsReady(i)) servers.push_back(i);
  }
  PushTotals totals;
  for (const ServerPush& push : publisher_->Publish(servers)) {
    TANDEM_RETURN_IF_ERROR(Settle(push, &totals));
  }
  return totals;
}

absl::Status Delivery::Sync() {
  TANDEM_RETURN_IF_ERROR(ForwardEvents());
  std::vector<int> claimed;
  TANDEM_RETURN_IF_ERROR(ClaimBehind(&claimed));
  PushTotals totals;
  for (const int server : claimed) {
    TANDEM_RETURN_IF_ERROR(Settle(publisher_->PushTo(server), &totals));
  }
  return absl::OkStatus();
}

absl::Status Delivery::Verify() {
  for (int i = 0; i < client_->num_servers(); ++i) {
    if (!client_->IsReady(i)) continue;
    const absl::Status status = publisher_->Verify(i);
    if (status.code() == absl::StatusCode::kDataLoss) return status;
    if (!status.ok()) client_->MarkLost(i, status.ToString());
  }
  return absl::OkStatus();
}

absl::Status Delivery::ForwardEvents() {
  for (const ServerEvent& event : client_->TakeEvents()) {
    log::Info(event.kind, {{"server", event.address}, {"reason", event.message}});
    TANDEM_RETURN_IF_ERROR(events_(event.kind, absl::StrCat(event.address, ": ", event.message),
                                   {{"server", JsonText(event.address)}}));
  }
  return absl::OkStatus();
}

void AddPushNumbers(WeightVersion version, const CastNumbers& of_cast, const PushTotals& totals,
                    MetricsLine* line) {
  const CastNumbers cast = totals.effect.value_or(of_cast);
  line->AddCount("push/version", version.value);
  line->AddCount("push/bytes", totals.bytes);
  line->AddCount("push/dense_bytes", totals.dense_bytes);
  line->Add("push/seconds", totals.seconds);
  line->Add("push/pause_ms", totals.pause_ms);
  line->Add("push/changed_share", cast.changed_share);
  line->Add("push/lost_norm", cast.lost_norm);
  line->Add("push/update_norm", cast.update_norm);
  line->Add("push/arrived_share", cast.arrived_share);
}

}  // namespace tandem::trainer
