#include "trainer/rollouts/rollout_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller_channel.h"
#include "common/rpc/grpc_call.h"
#include "proto/rollout.grpc.pb.h"
#include "trainer/environments/turn_player.h"
#include "trainer/experience/group_check.h"
#include "trainer/rollouts/call_end.h"
#include "trainer/rollouts/group_stream.h"
#include "trainer/rollouts/server_info.h"

namespace tandem::trainer {
namespace {

using rollout::v1::GenerateGroupRequest;
using rollout::v1::GetInfoResponse;
using rollout::v1::RolloutService;
using std::chrono::steady_clock;

constexpr double kProbeTimeoutSeconds = 5;

enum class State { kLost, kBehind, kReady };

struct Task {
  GenerateGroupRequest request;
  int server = kAnyServer;
  int64_t num_attempts = 0;  // without those that a busy server turned away
  int64_t num_refusals = 0;  // by busy servers
  TraceParent trace;
  std::shared_ptr<TurnPlayer> player;  // null: completions of one turn
};

struct Server {
  explicit Server(ServerHandle& handle) : channel(handle.groups) {}

  const std::string& address() const { return channel.address(); }

  rpc::CallerChannel& channel;
  State state = State::kLost;
  bool was_ready = false;
  bool is_retired = false;
  bool is_hung = false;  // lost, and answers, but its engine does not move
  std::string last_error = "not reached yet";
  double retry_seconds = 0;
  // It answers and cannot be used: another's claim holds, pushes fail. Waits double until it is
  // used.
  double refusal_seconds = 0;
  steady_clock::time_point probe_at;
  std::optional<GetInfoResponse> info;
  // Admission batches by their ids: the last that was asked for here, and the last that the server
  // does not know any more, because it started over since.
  int64_t asked_batch = -1, forgotten_batch = -1;
  int64_t ready_epoch = -1, ready_version = -1;
};

steady_clock::time_point After(double seconds) {
  return steady_clock::now() +
         std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

struct RolloutClient::Impl {
  void Work(int index, bool probes);
  absl::Status Judge(const std::string& address, const GetInfoResponse& info) const;
  double NextWait(double seconds) const;  // after one of `seconds`; 0: there was none
  void Probe(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Readmit(int index, const GetInfoResponse& info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void RunTask(int index, Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  absl::Status Call(Server& server, const Task& task, FinishedGroup* group, CallEnd* end);
  void Settle(int index, Task task, FinishedGroup group, const CallEnd& end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Lose(int index, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  absl::Status CheckHealth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  std::string Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  Server& At(int index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return *servers[static_cast<size_t>(index)];
  }
  std::optional<Task> TakeTask(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  ServerPool* pool = nullptr;
  RolloutClientOptions options;
  Accept accept;
  DrawnHook drawn;
  std::string run_id;

  mutable Mutex mu;
  CondVar changed;                                                   // anything below
  std::vector<std::unique_ptr<Server>> servers ABSL_GUARDED_BY(mu);  // by number; only grows
  std::vector<std::thread> threads ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;
  int64_t cancel_round ABSL_GUARDED_BY(mu) = 0;
  absl::Status fatal ABSL_GUARDED_BY(mu);
  std::deque<Task> queue ABSL_GUARDED_BY(mu);
  std::deque<FinishedGroup> finished ABSL_GUARDED_BY(mu);
  bool woken ABSL_GUARDED_BY(mu) = false;  // Next returns without a group
  std::map<grpc::ClientContext*, int64_t> in_flight ABSL_GUARDED_BY(mu);  // to group ids
  std::set<int64_t> running ABSL_GUARDED_BY(mu);    // group ids with a call that has not ended
  std::set<int64_t> cancelled ABSL_GUARDED_BY(mu);  // those of `running` that nobody waits for
  std::vector<ServerEvent> events ABSL_GUARDED_BY(mu);
  int64_t num_retries ABSL_GUARDED_BY(mu) = 0;
  bool any_came ABSL_GUARDED_BY(mu) = false;
  int64_t num_outstanding ABSL_GUARDED_BY(mu) = 0;
  double idle_since ABSL_GUARDED_BY(mu) = MonotonicSeconds();  // while there is none of those
  double idle_seconds ABSL_GUARDED_BY(mu) = 0;                 // before
  double none_ready_since ABSL_GUARDED_BY(mu) = MonotonicSeconds();
  double next_warning_seconds ABSL_GUARDED_BY(mu) = 2;
};

RolloutClient::RolloutClient(ServerPool* pool, const std::string& run_id,
                             const RolloutClientOptions& options, Accept accept, DrawnHook drawn)
    : impl_(std::make_unique<Impl>()) {
  impl_->pool = pool;
  impl_->options = options;
  impl_->accept = std::move(accept);
  impl_->drawn = std::move(drawn);
  impl_->run_id = run_id;
  for (int server = 0; server < pool->size(); ++server) AddServer(pool->at(server).address());
}

RolloutClient::~RolloutClient() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&impl_->mu);
    impl_->stopping = true;
    impl_->queue.clear();
    for (const auto& [context, group_id] : impl_->in_flight) context->TryCancel();
    impl_->changed.NotifyAll();
    threads = std::exchange(impl_->threads, {});
  }
  for (std::thread& thread : threads) thread.join();
}

void RolloutClient::AddServer(const std::string& address) {
  MutexLock lock(&impl_->mu);
  const int index = impl_->pool->Add(address);
  if (static_cast<size_t>(index) < impl_->servers.size()) {
    impl_->At(index).is_retired = false;
    impl_->changed.NotifyAll();
    return;
  }
  impl_->servers.push_back(std::make_unique<Server>(impl_->pool->at(index)));
  for (int64_t worker = 0; worker < impl_->options.groups_in_flight; ++worker) {
    impl_->threads.emplace_back([this, index, worker] { impl_->Work(index, worker == 0); });
  }
}

void RolloutClient::Retire(int server) {
  MutexLock lock(&impl_->mu);
  Server& retired = impl_->At(server);
  if (retired.is_retired) return;
  retired.is_retired = true;
  impl_->events.push_back(
      {"server_retired", retired.address(), "trainer.servers names it no more"});
  impl_->changed.NotifyAll();
}

void RolloutClient::Impl::Work(int index, bool probes) {
  MutexLock lock(&mu);
  while (!stopping) {
    const Server& server = At(index);
    if (server.state == State::kLost && !server.is_retired && probes) {
      Probe(index);
    } else if (std::optional<Task> task = TakeTask(index)) {
      RunTask(index, *std::move(task));
    } else {
      changed.Wait(&mu);
    }
  }
}

std::optional<Task> RolloutClient::Impl::TakeTask(int index) {
  if (At(index).state != State::kReady) return std::nullopt;
  for (auto it = queue.begin(); it != queue.end(); ++it) {
    if (it->server != kAnyServer && it->server != index) continue;
    Task task = std::move(*it);
    queue.erase(it);
    return task;
  }
  return std::nullopt;
}

// Can this run use the server at all? Nothing that waiting would change.
absl::Status RolloutClient::Impl::Judge(const std::string& address,
                                        const GetInfoResponse& info) const {
  const std::string who = absl::StrCat("rollout server ", address);
  if (!info.owner_run_id().empty() && info.owner_run_id() != run_id) {
    return FailedPrecondition(
        who, " belongs to run '", info.owner_run_id(),
        "': stop that run, wait for its lease to end, or name another server");
  }
  const double most = static_cast<double>(info.max_deadline_ms()) / 1e3;
  if (most > 0 && options.call_timeout_seconds > most) {
    return InvalidArgument(who, " takes deadlines of at most ", most,
                           " s (server.max_deadline_seconds), and ",
                           "trainer.client.call_timeout_seconds is ", options.call_timeout_seconds);
  }
  const absl::Status accepted = accept ? accept(info) : absl::OkStatus();
  if (accepted.ok()) return accepted;
  return absl::Status(accepted.code(), absl::StrCat(who, ": ", accepted.message()));
}

double RolloutClient::Impl::NextWait(double seconds) const {
  return std::min(std::max(options.retry_initial_seconds, 2 * seconds), options.retry_max_seconds);
}

// Asks a lost server for its state, then waits if it still is lost.
void RolloutClient::Impl::Probe(int index) {
  Server& server = At(index);
  if (steady_clock::now() < server.probe_at) {
    changed.WaitUntil(&mu, server.probe_at);
    return;
  }
  GetInfoResponse info;
  mu.Unlock();
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(kProbeTimeoutSeconds));
  const auto channel = server.channel.current();
  const grpc::Status status = RolloutService::NewStub(channel)->GetInfo(&context, {}, &info);
  server.channel.Ended(channel, status);
  const bool answers = status.ok() && !info.draining();
  absl::Status usable = answers ? Judge(server.address(), info) : absl::OkStatus();
  // A foreign server that no run can be trained on (trainer/foreign).
  if (absl::Status error = rpc::FromGrpc(status, "rollout server " + server.address());
      absl::IsInvalidArgument(error)) {
    usable = std::move(error);
  }
  mu.Lock();
  if (stopping || server.state != State::kLost) return;
  if (!usable.ok()) fatal = usable;
  const std::string hung = answers ? WhyHung(info, options.call_timeout_seconds) : "";
  const bool was_hung = std::exchange(server.is_hung, !hung.empty());
  if (server.is_hung && !was_hung) events.push_back({"server_hung", server.address(), hung});
  if (answers && !server.is_hung) return Readmit(index, info);
  server.last_error = !hung.empty() ? hung : status.ok() ? "is draining" : status.error_message();
  server.retry_seconds = NextWait(server.retry_seconds);
  if (!fatal.ok() || server.is_hung != was_hung) changed.NotifyAll();
  const auto until = After(server.retry_seconds);
  while (!stopping && changed.WaitUntil(&mu, until)) {
  }
}

// A lost server answers again.
void RolloutClient::Impl::Readmit(int index, const GetInfoResponse& info) {
  Server& server = At(index);
  const bool proven = server.ready_version == info.live_weight_version() &&
                      server.ready_epoch == info.weight_epoch() && info.owner_run_id() == run_id;
  // A server forgets its admission batches when it ends, and when a run claims it anew.
  if (info.owner_run_id() != run_id) server.forgotten_batch = server.asked_batch;
  server.info = info;
  server.state = proven ? State::kReady : State::kBehind;
  server.retry_seconds = 0;
  events.push_back({server.was_ready ? "server_back" : "server_ready", server.address(),
                    absl::StrCat("weight version ", info.live_weight_version())});
  changed.NotifyAll();
}

void RolloutClient::Impl::RunTask(int index, Task task) {
  Server& server = At(index);
  const int64_t round = cancel_round;
  ++task.num_attempts;
  if (task.num_attempts > 1) ++num_retries;
  // A held-back batch whose other groups are done already would wait for them in vain. What is
  // sampled does not depend on the batch composition, as far as numerics promise
  // (docs/rollouts.md).
  const int64_t batch = task.request.admission_batch().batch_id();
  server.asked_batch = std::max(server.asked_batch, batch);
  if (batch <= server.forgotten_batch || task.num_attempts > 3) {
    task.request.clear_admission_batch();
  }
  FinishedGroup group;
  group.group_id = task.request.group_id();
  group.server = index;
  running.insert(group.group_id);
  CallEnd end;
  mu.Unlock();
  group.status = Call(server, task, &group, &end);
  if (drawn && group.status.ok()) drawn(task.request, &group);
  mu.Lock();
  running.erase(group.group_id);
  if (stopping || round != cancel_round || cancelled.erase(group.group_id) > 0) return;
  Settle(index, std::move(task), std::move(group), end);
  if (end.is_busy()) {
    const auto until = After(std::max(end.retry_after_seconds, options.retry_initial_seconds));
    while (!stopping && changed.WaitUntil(&mu, until)) {
    }
  }
}

absl::Status RolloutClient::Impl::Call(Server& server, const Task& task, FinishedGroup* group,
                                       CallEnd* end) {
  const GenerateGroupRequest& request = task.request;
  grpc::ClientContext context;
  ScopedSpan span(task.trace, "ask_for_group", SpanKind::kClient);
  span.Set("tandem.group_id", request.group_id());
  span.Set("server.address", server.address());
  span.Set("tandem.attempt", task.num_attempts);
  if (task.trace.tracer != nullptr) context.AddMetadata(kTraceparent, span.traceparent());
  rpc::SetDeadline(context, absl::Seconds(options.call_timeout_seconds));
  server.channel.Identify(&context);
  {
    MutexLock lock(&mu);
    if (stopping) return Cancelled("stopping");
    if (cancelled.contains(request.group_id())) return Cancelled("not needed any more");
    in_flight.emplace(&context, request.group_id());
  }
  const auto channel = server.channel.current();
  absl::Status checked;
  const grpc::Status status =
      ReadGroup({channel, &server.channel, task.player.get()}, request, &context, group, &checked);
  server.channel.Ended(channel, status);
  span.SetError(status.error_message());
  {
    MutexLock lock(&mu);
    in_flight.erase(&context);
  }
  *end = EndOf(context, status);
  TANDEM_RETURN_IF_ERROR(end->status);
  TANDEM_RETURN_IF_ERROR(checked);
  if (group->done.incomplete() && !options.allow_incomplete_groups) {
    return DataLoss("group ", request.group_id(),
                    " was stopped early by a request "
                    "(trainer.client.allow_incomplete_groups takes such groups)");
  }
  TANDEM_RETURN_IF_ERROR(CheckGroup(request, &group->completions));
  if (request.greedy_baseline()) {
    group->baseline = std::move(group->completions.back());
    group->completions.pop_back();
  }
  return absl::OkStatus();
}

// Decides what becomes of a call that ended.
void RolloutClient::Impl::Settle(int index, Task task, FinishedGroup group, const CallEnd& end) {
  if (end.is_busy()) {
    --task.num_attempts;
    ++task.num_refusals;
  }
  if (group.status.ok() || IsImpossible(group.status) ||
      task.num_attempts >= options.max_attempts) {
    if (!group.status.ok()) group.completions.clear();
    finished.push_back(std::move(group));
    if (--num_outstanding == 0) idle_since = MonotonicSeconds();
    changed.NotifyAll();
    return;
  }
  // A busy server may turn a group away for minutes: each time would fill the log.
  if (!end.is_busy() || std::has_single_bit(static_cast<uint64_t>(task.num_refusals))) {
    log::Warning("a group is asked for again", {{"group_id", group.group_id},
                                                {"attempt", task.num_attempts},
                                                {"refusals", task.num_refusals},
                                                {"server", At(index).address()},
                                                {"reason", std::string(group.status.message())}});
  }
  if (!end.is_busy() && !ServerIsFine(group.status)) Lose(index, group.status.ToString());
  queue.push_front(std::move(task));
  changed.NotifyAll();
}

void RolloutClient::Impl::Lose(int index, const std::string& reason) {
  Server& server = At(index);
  server.last_error = reason;
  if (server.state == State::kLost) return;
  server.was_ready = true;
  server.state = State::kLost;
  events.push_back({"server_lost", server.address(), reason});
  changed.NotifyAll();
}

absl::Status RolloutClient::Impl::CheckHealth() {
  if (!fatal.ok()) return fatal;
  const double now = MonotonicSeconds();
  const bool usable = std::ranges::any_of(
      servers, [](const auto& server) { return server->state != State::kLost; });
  if (usable) {
    any_came = true;
    none_ready_since = now;
    next_warning_seconds = 2;
    return absl::OkStatus();
  }
  std::string errors = Missing();
  if (errors.empty()) errors = "trainer.servers names none now";
  const double waited = now - none_ready_since;
  const double patience = any_came ? options.server_patience_seconds : options.start_patience();
  if (waited >= patience) {
    return Unavailable("no rollout server for ", static_cast<int64_t>(waited), " s (client.",
                       any_came || options.start_patience_seconds == 0 ? "server" : "start",
                       "_patience_seconds): ", errors);
  }
  if (waited >= next_warning_seconds) {
    log::Warning("no rollout server answers; waiting",
                 {{"waited_s", waited}, {"patience_s", patience}, {"errors", errors}});
    next_warning_seconds *= 2;
  }
  return absl::OkStatus();
}

std::string RolloutClient::Impl::Missing() const {
  std::string errors;
  for (const auto& server : servers) {
    if (server->is_retired || server->state != State::kLost) continue;
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", server->address(), ": ",
                    server->last_error);
  }
  return errors;
}

void RolloutClient::Submit(GenerateGroupRequest request, int server, const TraceParent& trace,
                           std::shared_ptr<TurnPlayer> player) {
  MutexLock lock(&impl_->mu);
  if (impl_->num_outstanding++ == 0) impl_->idle_seconds += MonotonicSeconds() - impl_->idle_since;
  impl_->queue.push_back({.request = std::move(request),
                          .server = server,
                          .trace = trace,
                          .player = std::move(player)});
  impl_->changed.NotifyAll();
}

absl::StatusOr<std::optional<FinishedGroup>> RolloutClient::Next(
    std::chrono::milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  MutexLock lock(&impl_->mu);
  for (;;) {
    if (!impl_->finished.empty()) {
      FinishedGroup group = std::move(impl_->finished.front());
      impl_->finished.pop_front();
      return group;
    }
    TANDEM_RETURN_IF_ERROR(impl_->CheckHealth());
    if (std::exchange(impl_->woken, false)) return std::nullopt;
    if (!impl_->changed.WaitUntil(&impl_->mu, deadline)) {
      if (impl_->finished.empty()) return std::nullopt;
    }
  }
}

void RolloutClient::Wake() {
  MutexLock lock(&impl_->mu);
  impl_->woken = true;
  impl_->changed.NotifyAll();
}

std::vector<int> RolloutClient::Behind(std::chrono::milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  MutexLock lock(&impl_->mu);
  for (;;) {
    std::vector<int> behind;
    for (size_t i = 0; i < impl_->servers.size(); ++i) {
      if (impl_->servers[i]->state == State::kBehind) behind.push_back(static_cast<int>(i));
    }
    if (!behind.empty() || timeout.count() == 0) return behind;
    if (!impl_->changed.WaitUntil(&impl_->mu, deadline)) return behind;
  }
}

void RolloutClient::MarkReady(int server, int64_t epoch, int64_t version) {
  MutexLock lock(&impl_->mu);
  Server& marked = impl_->At(server);
  marked.ready_epoch = epoch;
  marked.ready_version = version;
  marked.refusal_seconds = 0;
  if (marked.state == State::kBehind) marked.state = State::kReady;
  impl_->changed.NotifyAll();
}

void RolloutClient::MarkLost(int server, const std::string& reason) {
  MutexLock lock(&impl_->mu);
  Server& marked = impl_->At(server);
  if (marked.state == State::kBehind) {
    marked.refusal_seconds = impl_->NextWait(marked.refusal_seconds);
    marked.probe_at = After(marked.refusal_seconds);
  }
  marked.ready_version = -1;
  impl_->Lose(server, reason);
}

void RolloutClient::Doubt(int server, const std::string& reason) {
  MutexLock lock(&impl_->mu);
  impl_->Lose(server, reason);
}

void RolloutClient::ExpireProofs() {
  MutexLock lock(&impl_->mu);
  for (const auto& server : impl_->servers) server->ready_version = -1;
}

absl::Status RolloutClient::Health() {
  MutexLock lock(&impl_->mu);
  return impl_->CheckHealth();
}

bool RolloutClient::IsReady(int server) const {
  MutexLock lock(&impl_->mu);
  return impl_->At(server).state == State::kReady;
}

const std::string& RolloutClient::address(int server) const {
  MutexLock lock(&impl_->mu);
  return impl_->At(server).address();
}

int RolloutClient::num_servers() const {
  MutexLock lock(&impl_->mu);
  return static_cast<int>(impl_->servers.size());
}

bool RolloutClient::IsRetired(int server) const {
  MutexLock lock(&impl_->mu);
  return impl_->At(server).is_retired;
}

bool RolloutClient::IsLost(int server) const {
  MutexLock lock(&impl_->mu);
  return impl_->At(server).state == State::kLost;
}

TrainerMetrics::Queues RolloutClient::queues() const {
  MutexLock lock(&impl_->mu);
  TrainerMetrics::Queues queues = {.groups_in_flight = impl_->num_outstanding,
                                   .servers = std::ssize(impl_->servers),
                                   .idle_seconds = impl_->idle_seconds,
                                   .retries = impl_->num_retries};
  for (const auto& server : impl_->servers) {
    queues.servers_ready += server->state == State::kReady;
    queues.servers_hung += server->is_hung && server->state == State::kLost && !server->is_retired;
  }
  if (impl_->num_outstanding == 0) queues.idle_seconds += MonotonicSeconds() - impl_->idle_since;
  return queues;
}

std::string RolloutClient::Missing() const {
  MutexLock lock(&impl_->mu);
  return impl_->Missing();
}

std::optional<GetInfoResponse> RolloutClient::info(int server) const {
  MutexLock lock(&impl_->mu);
  return impl_->At(server).info;
}

std::vector<ServerEvent> RolloutClient::TakeEvents() {
  MutexLock lock(&impl_->mu);
  return std::exchange(impl_->events, {});
}

void RolloutClient::Cancel(std::span<const int64_t> group_ids) {
  MutexLock lock(&impl_->mu);
  const std::set<int64_t> ids(group_ids.begin(), group_ids.end());
  auto dropped = static_cast<int64_t>(std::erase_if(
      impl_->queue, [&](const Task& task) { return ids.contains(task.request.group_id()); }));
  std::erase_if(impl_->finished, [&](const FinishedGroup& f) { return ids.contains(f.group_id); });
  for (const int64_t id : impl_->running) {
    if (ids.contains(id)) dropped += impl_->cancelled.insert(id).second;
  }
  for (const auto& [context, id] : impl_->in_flight) {
    if (ids.contains(id)) context->TryCancel();
  }
  impl_->num_outstanding -= dropped;
  if (dropped > 0 && impl_->num_outstanding == 0) impl_->idle_since = MonotonicSeconds();
  impl_->changed.NotifyAll();
}

void RolloutClient::CancelAll() {
  MutexLock lock(&impl_->mu);
  if (std::exchange(impl_->num_outstanding, 0) > 0) impl_->idle_since = MonotonicSeconds();
  ++impl_->cancel_round;
  impl_->queue.clear();
  impl_->finished.clear();
  impl_->cancelled.clear();
  for (const auto& [context, group_id] : impl_->in_flight) context->TryCancel();
  impl_->changed.NotifyAll();
}

}  // namespace tandem::trainer
