#include "rollout_server/groups/group_registry.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/rpc/refusal.h"

namespace tandem::rollout {
namespace {

using rpc::Refusal;
using rpc::Refused;

// Bytes that a request holds while it waits or runs.
int64_t RequestBytes(const GroupRequest& request) {
  const SamplingParams& sampling = request.sampling;
  size_t bytes = sizeof(GroupRequest) +
                 sizeof(int32_t) * (request.prompt.size() + sampling.stop_token_ids.size());
  for (const std::string& stop : sampling.stop_strings) bytes += sizeof(stop) + stop.size();
  return static_cast<int64_t>(bytes);
}

GroupName NameOf(const GroupSubmission& submission) {
  return {submission.run_id, submission.group_id,
          submission.run_id.empty() ? absl::StrCat(submission.caller, submission.fingerprint)
                                    : submission.caller};
}

// The owner of an admission batch: nobody can put a group into the batch of another caller.
std::string BatchOwner(const std::string& run_id, const std::string& caller) {
  return caller.empty() ? run_id : absl::StrCat(run_id, "\n", caller);
}

}  // namespace

GroupRegistry::GroupRegistry(Runner runner, Limits limits, SecondsClock clock,
                             OnFinished on_finished)
    : runner_(std::move(runner)),
      limits_(limits),
      clock_(std::move(clock)),
      on_finished_(std::move(on_finished)),
      remembered_(limits_.remembered_groups) {}

// Called after every change. Returns when the orders given so far were sent, and then tells `told`
// to look. A call from inside an order (an engine that has stopped answers inline) returns at once:
// the outer call goes on sending.
void GroupRegistry::SendAndTell(const Listeners& told) {
  {
    MutexLock lock(&mu_);
    const std::thread::id self = std::this_thread::get_id(), nobody;
    const auto ordered = num_sent_ + std::ssize(orders_) + (sender_ == nobody ? 0 : 1);
    while (sender_ != self) {
      if (sender_ == nobody && !orders_.empty()) {
        sender_ = self;
        const std::function<void()> order = std::move(orders_.front());
        orders_.pop_front();
        mu_.Unlock();
        order();
        mu_.Lock();
        sender_ = nobody;
        ++num_sent_;
        sent_.NotifyAll();
      } else if (num_sent_ < ordered) {
        sent_.Wait(&mu_);
      } else {
        break;
      }
    }
  }
  for (const auto& listener : told) listener->OnProgress();
}

absl::StatusOr<std::shared_ptr<GroupCall>> GroupRegistry::Join(
    GroupSubmission submission, std::shared_ptr<GroupListener> listener) {
  Listeners told;
  absl::StatusOr<std::shared_ptr<GroupCall>> call =
      JoinOrStart(std::move(submission), listener, &told);
  SendAndTell(told);
  return call;
}

absl::StatusOr<std::shared_ptr<GroupCall>> GroupRegistry::JoinOrStart(
    GroupSubmission submission, const std::shared_ptr<GroupListener>& listener, Listeners* told) {
  if (submission.batch) submission.batch->run_id = BatchOwner(submission.run_id, submission.caller);
  MutexLock lock(&mu_);
  const GroupName name = NameOf(submission);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<GroupCall> known, FindKnown(name, submission, told));
  if (known) {
    known->AddListener(listener);
    return known;
  }
  if (!refusal_.ok()) return refusal_;
  TANDEM_RETURN_IF_ERROR(CheckLimits(submission));

  const GroupKey key = next_key_++;
  Entry entry{name, submission.fingerprint, submission.batch, std::make_shared<GroupCall>(),
              Phase::kHeld};
  entry.report.arrived = clock_();
  entry.report.group_id = submission.group_id;
  entry.report.trace = std::move(submission.trace);
  entry.priority = submission.request.priority;
  entry.live_version = submission.live_version;
  entry.yields = submission.yields;
  entry.memory = std::make_shared<ByteMeter>(submission.yields ? others_memory_ : memory_);
  submission.request.charge = ByteCharge(entry.memory, RequestBytes(submission.request));
  submission.request.key = key;
  std::vector<GroupRequest> released;
  if (submission.batch) {
    TANDEM_ASSIGN_OR_RETURN(released, batches_.Arrive(*submission.batch, submission.group_id,
                                                      std::move(submission.request)));
  } else {
    released.push_back(std::move(submission.request));
  }
  std::shared_ptr<GroupCall> call = entry.call;
  call->AddListener(listener);
  keys_[name] = key;
  entries_.emplace(key, std::move(entry));
  SubmitReleased(std::move(released));
  return call;
}

// The group of this name that runs or is remembered, or null. A group with tokens from weights
// older than the caller now accepts is ended or forgotten, and is then sampled anew.
absl::StatusOr<std::shared_ptr<GroupCall>> GroupRegistry::FindKnown(
    const GroupName& name, const GroupSubmission& submission, Listeners* told) {
  const auto mismatch = [&] {
    return InvalidArgument("group ", submission.group_id, " of run '", submission.run_id,
                           "' was asked for with another prompt or other parameters");
  };
  if (const auto found = keys_.find(name); found != keys_.end()) {
    const GroupKey key = found->second;
    Entry& entry = entries_.at(key);
    if (entry.fingerprint != submission.fingerprint) return mismatch();
    if (entry.phase != Phase::kRunning) entry.live_version = submission.live_version;
    if (entry.live_version >= submission.min_weight_version) return entry.call;
    EndNow(key,
           Aborted("group ", submission.group_id, " was asked for again from weights of version ",
                   submission.min_weight_version, " at least"),
           told);
    return nullptr;
  }
  const RememberedGroups::Finished* const done = remembered_.Find(name);
  if (done == nullptr) return nullptr;
  if (done->fingerprint != submission.fingerprint) return mismatch();
  if (done->oldest_version >= submission.min_weight_version) return done->call;
  remembered_.Forget(name);
  return nullptr;
}

absl::Status GroupRegistry::CheckLimits(const GroupSubmission& submission) {
  if (submission.batch && submission.batch->num_groups > limits_.max_queued_groups) {
    return InvalidArgument(
        "admission batch of ", submission.batch->num_groups,
        " groups never fits a queue of max_queued_groups = ", limits_.max_queued_groups);
  }
  const int64_t queued = CountsLocked().queued;
  if (queued >= limits_.max_queued_groups) {
    return Refused(Refusal::kQueueFull, ResourceExhausted("the queue is full: ", queued,
                                                          " groups wait (max_queued_groups = ",
                                                          limits_.max_queued_groups, ")"));
  }
  if (submission.yields && queued >= limits_.max_queued_groups / 2) {
    return Refused(
        Refusal::kQueueFull,
        ResourceExhausted("the queue is full for clients without ownership: ", queued,
                          " groups wait, and the rest of its ", limits_.max_queued_groups,
                          " places (max_queued_groups) is for the run that owns this server"));
  }
  // A group that its batch holds back does not wait for the engine yet, and one of lower priority
  // starts later than this one.
  const auto waiting = std::ranges::count_if(entries_, [&](const auto& one) {
    return one.second.phase == Phase::kQueued && one.second.priority >= submission.request.priority;
  });
  if (static_cast<double>(waiting) * pace_.interval() > submission.seconds_left) {
    return Refused(
        Refusal::kDeadlineBeforeStart,
        ResourceExhausted("refused at once: ", waiting, " groups wait and one starts every ",
                          absl::StrFormat("%.2g", pace_.interval()),
                          " s, so this one would start after its deadline in ",
                          absl::StrFormat("%.2g", submission.seconds_left), " s"));
  }
  return CheckMemory(submission);
}

absl::Status GroupRegistry::CheckMemory(const GroupSubmission& submission) {
  const int64_t wanted_bytes = RequestBytes(submission.request), limit = limits_.memory_bytes;
  if (wanted_bytes > (submission.yields ? limit / 2 : limit)) {
    return Refused(
        Refusal::kTooLarge,
        InvalidArgument(
            "the request alone has ", wanted_bytes, " bytes: groups ",
            submission.yields ? "of clients without ownership may hold half of " : "may hold ",
            "server.memory_bytes = ", limit));
  }
  while (memory_->used() + wanted_bytes > limit && remembered_.ForgetOldest()) {
  }
  if (submission.yields && OthersBytes() + wanted_bytes > limit / 2) {
    return Refused(
        Refusal::kMemoryFull,
        ResourceExhausted("the memory for groups of clients without ownership is full: they hold ",
                          OthersBytes(), " bytes, and half of server.memory_bytes = ", limit,
                          " is for the run that owns this server"));
  }
  if (memory_->used() + wanted_bytes <= limit) return absl::OkStatus();
  return Refused(
      Refusal::kMemoryFull,
      ResourceExhausted("the memory for groups is full: those that wait, run or have not been "
                        "fetched hold ",
                        memory_->used(), " bytes (server.memory_bytes = ", limit, ")"));
}

void GroupRegistry::SubmitReleased(std::vector<GroupRequest> groups) {
  if (groups.empty()) return;
  const bool none_waited = std::ranges::none_of(
      entries_, [](const auto& one) { return one.second.phase == Phase::kQueued; });
  if (none_waited) pace_.BeginWaiting(clock_());
  for (GroupRequest& group : groups) {
    Entry& entry = entries_.at(group.key);
    entry.phase = Phase::kQueued;
    group.priority = entry.priority;  // may have been lowered by PutOthersBehind
  }
  auto shared = std::make_shared<std::vector<GroupRequest>>(std::move(groups));
  orders_.push_back([this, shared] { runner_.submit(std::move(*shared)); });
}

// Ends the group's calls with `error` and frees it.
void GroupRegistry::EndNow(GroupKey key, const absl::Status& error, Listeners* told) {
  const Entry entry = entries_.at(key);
  entry.call->End(error);
  for (auto& listener : entry.call->listeners()) told->push_back(std::move(listener));
  Remove(key);
  if (entry.phase == Phase::kHeld) {
    batches_.Withdraw(*entry.batch, entry.name.group_id);
  } else {
    orders_.push_back([this, key] { runner_.abort(key); });
  }
}

bool GroupRegistry::Leave(const std::shared_ptr<GroupCall>& call, const GroupListener* listener) {
  {
    MutexLock lock(&mu_);
    if (!call->RemoveListener(listener)) return false;
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const auto& one) { return one.second.call == call; });
    if (found == entries_.end()) return false;  // finished
    Listeners none;
    EndNow(found->first, Cancelled("every caller left"), &none);
  }
  SendAndTell({});
  return true;
}

bool GroupRegistry::Abort(const std::string& run_id, int64_t group_id, const std::string& caller) {
  Listeners told;
  {
    MutexLock lock(&mu_);
    const std::optional<GroupKey> found = FindInFlight(run_id, group_id, caller);
    if (!found) return false;
    const Entry& entry = entries_.at(*found);
    const std::optional<AdmissionBatches::BatchRef> held_in =
        entry.phase == Phase::kHeld ? entry.batch : std::nullopt;
    // The rest of its batch must not wait for it, so it is skipped before EndNow withdraws it.
    std::vector<GroupRequest> released;
    if (held_in) released = batches_.Skip(*held_in, group_id);
    EndNow(*found, Aborted("group ", group_id, " was aborted"), &told);
    SubmitReleased(std::move(released));
  }
  SendAndTell(told);
  return true;
}

bool GroupRegistry::StopEarly(const std::string& run_id, int64_t group_id,
                              const std::string& caller) {
  bool is_held = false;
  {
    MutexLock lock(&mu_);
    const std::optional<GroupKey> group = FindInFlight(run_id, group_id, caller);
    if (!group) return false;
    is_held = entries_.at(*group).phase == Phase::kHeld;
    if (!is_held) orders_.push_back([this, key = *group] { runner_.stop_early(key); });
  }
  if (is_held) return Abort(run_id, group_id, caller);
  SendAndTell({});
  return true;
}

std::optional<GroupKey> GroupRegistry::FindInFlight(const std::string& run_id, int64_t group_id,
                                                    const std::string& caller) const {
  // A client without ownership may have several groups of one number, one for each request.
  const auto key = keys_.lower_bound({run_id, group_id, caller});
  if (key == keys_.end() || key->first.run_id != run_id || key->first.group_id != group_id ||
      !absl::StartsWith(key->first.caller, caller)) {
    return std::nullopt;
  }
  return key->second;
}

void GroupRegistry::FailAll(const absl::Status& error) {
  {
    MutexLock lock(&mu_);
    refusal_ = error;
  }
  AbortAll(error);
}

void GroupRegistry::AbortAll(const absl::Status& error) {
  Listeners told;
  {
    MutexLock lock(&mu_);
    while (!entries_.empty()) EndNow(entries_.begin()->first, error, &told);
    batches_ = AdmissionBatches();
  }
  SendAndTell(told);
}

void GroupRegistry::Forget(const std::string& run_id, const std::string& caller) {
  Listeners told;
  {
    MutexLock lock(&mu_);
    EndHeld(run_id, Aborted("the run started over: ask again"), &told);
    batches_.Forget(BatchOwner(run_id, caller));
    remembered_.ForgetRun(run_id);
  }
  SendAndTell(told);
}

void GroupRegistry::PutOthersBehind(const std::string& run_id, const std::string& caller) {
  Listeners told;
  {
    MutexLock lock(&mu_);
    std::erase_if(put_behind_, [](const auto& one) { return one->used() == 0; });
    std::vector<GroupKey> waiting;
    for (auto& [key, entry] : entries_) {
      const bool is_owners = entry.name.run_id == run_id && entry.name.caller == caller;
      if (is_owners || entry.yields) continue;
      entry.yields = true;
      entry.priority = std::numeric_limits<int32_t>::min();
      put_behind_.push_back(entry.memory);
      if (entry.phase == Phase::kQueued) waiting.push_back(key);
    }
    if (!waiting.empty()) {
      orders_.push_back([this, waiting] { runner_.put_last(waiting); });
    }
    const absl::Status beyond_half = Refused(
        Refusal::kQueueFull,
        ResourceExhausted("run '", run_id,
                          "' claimed this server: what others asked for before waits behind its "
                          "groups, in half of the queue and of server.memory_bytes, and this "
                          "group was beyond that"));
    for (const GroupKey key : WaitingOthersBeyondHalf()) EndNow(key, beyond_half, &told);
  }
  SendAndTell(told);
}

// The youngest waiting groups: those beyond half of the queue or of the memory.
std::vector<GroupKey> GroupRegistry::WaitingOthersBeyondHalf() const {
  int64_t num_waiting = 0, bytes = 0;
  std::vector<GroupKey> beyond;
  for (const auto& [key, entry] : entries_) {
    if (!entry.yields || entry.phase == Phase::kRunning) continue;
    ++num_waiting;
    bytes += entry.memory->used();
    if (num_waiting > limits_.max_queued_groups / 2 || bytes > limits_.memory_bytes / 2) {
      beyond.push_back(key);
    }
  }
  return beyond;
}

int64_t GroupRegistry::OthersBytes() const {
  int64_t bytes = others_memory_->used();
  for (const auto& one : put_behind_) bytes += one->used();
  return bytes;
}

void GroupRegistry::StartDrain() {
  Listeners told;
  {
    MutexLock lock(&mu_);
    const absl::Status draining = Unavailable("the server is draining");
    if (refusal_.ok()) refusal_ = draining;
    EndHeld(std::nullopt, draining, &told);
  }
  SendAndTell(told);
}

// Ends the groups that batches hold back: those of one run, or all.
void GroupRegistry::EndHeld(const std::optional<std::string>& run_id, const absl::Status& error,
                            Listeners* told) {
  std::vector<GroupKey> held;
  for (const auto& [key, entry] : entries_) {
    if (entry.phase != Phase::kHeld) continue;
    if (!run_id || entry.name.run_id == *run_id) held.push_back(key);
  }
  for (const GroupKey key : held) EndNow(key, error, told);
}

bool GroupRegistry::WaitUntilIdle(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(&mu_);
  while (!entries_.empty() && idle_.WaitUntil(&mu_, deadline)) {
  }
  return entries_.empty();
}

void GroupRegistry::OnEvents(std::vector<EngineEvent> events) {
  Listeners told;
  std::vector<GroupReport> finished;
  {
    MutexLock lock(&mu_);
    NoteStarts(events);
    for (EngineEvent& event : events) Apply(std::move(event), &told, &finished);
  }
  SendAndTell(told);
  if (!on_finished_) return;
  for (const GroupReport& report : finished) on_finished_(report);
}

void GroupRegistry::NoteStarts(const std::vector<EngineEvent>& events) {
  int64_t num_started = 0;
  double seconds_ago = 0;
  for (const EngineEvent& event : events) {
    const auto* const started = std::get_if<GroupStarted>(&event);
    if (started == nullptr || !entries_.contains(started->key)) continue;
    ++num_started;
    seconds_ago = started->seconds_ago;  // the same for all groups of a step
  }
  if (num_started > 0) pace_.Started(num_started, clock_() - seconds_ago);
}

void GroupRegistry::OnResumed() {
  MutexLock lock(&mu_);
  pace_.SkipTo(clock_());
}

void GroupRegistry::Count(const FinishedCompletion& completion, Entry* entry) {
  GroupReport& report = entry->report;
  const int64_t num_tokens = completion.num_sampled();
  ++report.num_completions;
  report.num_tokens += num_tokens;
  report.longest_tokens = std::max(report.longest_tokens, num_tokens);
  if (completion.version_spans.size() > 1) report.num_spanning_tokens += num_tokens;
  if (completion.version_spans.empty()) return;
  const int64_t oldest = completion.version_spans.front().version.value;
  entry->drawn_from = std::min(entry->drawn_from, oldest);
}

void GroupRegistry::Apply(EngineEvent event, Listeners* told,
                          std::vector<GroupReport>* finished_groups) {
  const GroupKey key = std::visit([](const auto& one) { return one.key; }, event);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;  // freed while the step ran
  Entry& entry = found->second;
  const double now = clock_();
  if (const auto* started = std::get_if<GroupStarted>(&event)) {
    entry.phase = Phase::kRunning;
    entry.report.started = now - started->seconds_ago;
    return;
  }
  if (std::holds_alternative<GroupDecoding>(event)) {
    entry.report.decoding = now;
    return;
  }
  for (auto& listener : entry.call->listeners()) told->push_back(std::move(listener));
  if (auto* turn = std::get_if<TurnFinished>(&event)) {
    entry.call->Append(std::make_shared<const FinishedTurn>(std::move(turn->turn)));
    return;
  }
  if (auto* drawn = std::get_if<TokensDrawn>(&event)) {
    entry.call->Append(std::make_shared<const DrawnTokens>(std::move(drawn->drawn)));
    return;
  }
  if (auto* finished = std::get_if<CompletionFinished>(&event)) {
    Count(finished->completion, &entry);
    finished->completion.charge.Add(static_cast<int64_t>(finished->completion.text.size()));
    entry.call->Append(std::make_shared<const FinishedCompletion>(std::move(finished->completion)));
    return;
  }
  if (const auto* failed = std::get_if<GroupFailed>(&event)) {
    entry.call->End(failed->status);
    Remove(key);
    return;
  }
  const auto& ended = std::get<GroupFinished>(event);
  entry.report.num_prompt_tokens_cached = ended.num_prompt_tokens_cached;
  entry.report.incomplete = ended.incomplete;
  entry.report.ended = now;
  entry.call->End(entry.report);
  finished_groups->push_back(entry.report);
  if (!entry.name.run_id.empty() && limits_.remembered_groups > 0) {
    remembered_.Add(entry.name, {entry.fingerprint, entry.call, entry.drawn_from});
  }
  Remove(key);
}

void GroupRegistry::OnRejected(GroupKey key, const absl::Status& status) {
  Listeners told;
  {
    MutexLock lock(&mu_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    found->second.call->End(status);
    told = found->second.call->listeners();
    Remove(key);
  }
  SendAndTell(told);
}

void GroupRegistry::KeepWithinMemory() {
  const int64_t limit = limits_.memory_bytes;
  if (memory_->used() <= limit / 2) return;  // nor is the others' half full
  Listeners told;
  {
    MutexLock lock(&mu_);
    while (memory_->used() > limit && remembered_.ForgetOldest()) {
    }
    const int64_t over = memory_->used() - limit, others_over = OthersBytes() - limit / 2;
    const int64_t freed = EndYoungest(/*only_others=*/true, std::max(over, others_over), &told);
    EndYoungest(/*only_others=*/false, over - freed, &told);
  }
  SendAndTell(told);
}

// Ends the youngest running groups, until `bytes` are free or will be when listeners let go.
// Returns the bytes freed.
int64_t GroupRegistry::EndYoungest(bool only_others, int64_t bytes, Listeners* told) {
  std::vector<GroupKey> youngest;
  int64_t freed = 0;
  for (auto one = entries_.rbegin(); one != entries_.rend() && freed < bytes; ++one) {
    if (one->second.phase != Phase::kRunning || (only_others && !one->second.yields)) continue;
    youngest.push_back(one->first);
    freed += one->second.memory->used();
  }
  for (const GroupKey key : youngest) EndNow(key, OutgrewMemory(entries_.at(key)), told);
  return freed;
}

absl::Status GroupRegistry::OutgrewMemory(const Entry& entry) const {
  const int64_t held = entry.memory->used(), limit = limits_.memory_bytes;
  const int64_t group_id = entry.name.group_id;
  if (held > (entry.yields ? limit / 2 : limit)) {
    return Refused(
        Refusal::kTooLarge,
        ResourceExhausted("group ", group_id, " alone grew to ", held, " bytes, over ",
                          entry.yields ? "half of " : "", "server.memory_bytes = ", limit,
                          entry.yields ? " (the rest is for the run that owns this server)" : "",
                          ": ask for fewer or shorter completions, less top_logprobs, or "
                          "filters that leave fewer ids"));
  }
  return Refused(Refusal::kMemoryFull,
                 ResourceExhausted("group ", group_id, " was ended with ", held,
                                   " bytes: groups hold ", memory_->used(),
                                   " together (server.memory_bytes = ", limit, "); ask again"));
}

std::optional<GroupName> GroupRegistry::FindName(GroupKey key) const {
  MutexLock lock(&mu_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return found->second.name;
}

std::optional<GroupKey> GroupRegistry::FindKey(const std::string& run_id, int64_t group_id,
                                               const std::string& caller) const {
  MutexLock lock(&mu_);
  return FindInFlight(run_id, group_id, caller);
}

GroupRegistry::Counts GroupRegistry::counts() const {
  MutexLock lock(&mu_);
  return CountsLocked();
}

GroupRegistry::Counts GroupRegistry::CountsLocked() const {
  Counts counts;
  for (const auto& [key, entry] : entries_) {
    ++(entry.phase == Phase::kRunning ? counts.running : counts.queued);
  }
  return counts;
}

int64_t GroupRegistry::retry_after_ms() const {
  MutexLock lock(&mu_);
  return std::clamp(static_cast<int64_t>(pace_.interval() * 1e3), int64_t{50}, int64_t{10000});
}

void GroupRegistry::Remove(GroupKey key) {
  const auto found = entries_.find(key);
  keys_.erase(found->second.name);
  entries_.erase(found);
  if (entries_.empty()) idle_.NotifyAll();
}

}  // namespace tandem::rollout
