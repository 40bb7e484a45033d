#include "rollout_server/group_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::rollout {
namespace {

void Notify(const std::vector<std::shared_ptr<GroupListener>>& listeners) {
  for (const auto& listener : listeners) listener->OnProgress();
}

double Milliseconds(double from, double to) { return from > 0 ? (to - from) * 1e3 : 0; }

}  // namespace

GroupRegistry::GroupRegistry(Runner runner, Limits limits, SecondsClock clock,
                             OnFinished on_finished)
    : runner_(std::move(runner)),
      limits_(limits),
      clock_(std::move(clock)),
      on_finished_(std::move(on_finished)) {}

GroupRegistry::Name GroupRegistry::NameOf(const std::string& run_id, int64_t group_id,
                                          const std::string& fingerprint) {
  return {run_id, group_id, run_id.empty() ? fingerprint : std::string()};
}

absl::StatusOr<std::shared_ptr<GroupCall>> GroupRegistry::Join(
    Ask ask, std::shared_ptr<GroupListener> listener) {
  MutexLock lock(&mu_);
  const Name name = NameOf(ask.run_id, ask.group_id, ask.fingerprint);
  absl::Status mismatch;
  std::shared_ptr<GroupCall> known = FindKnown(name, ask.fingerprint, &mismatch);
  if (!mismatch.ok()) return mismatch;
  if (known) {
    known->AddListener(std::move(listener));
    return known;
  }
  if (!refusal_.ok()) return refusal_;
  if (absl::Status room = CheckRoom(ask); !room.ok()) return room;

  const GroupKey key = next_key_++;
  ask.request.key = key;
  Entry entry{name, ask.fingerprint, ask.batch, std::make_shared<GroupCall>(), Phase::kQueued};
  entry.arrived = clock_();
  entry.report.group_id = ask.group_id;
  entry.report.trace = std::move(ask.trace);
  std::vector<GroupRequest> released;
  if (ask.batch) {
    auto arrived = batches_.Arrive(*ask.batch, ask.group_id, std::move(ask.request));
    if (!arrived.ok()) return arrived.status();
    released = *std::move(arrived);
    entry.phase = Phase::kHeld;
  } else {
    released.push_back(std::move(ask.request));
  }
  std::shared_ptr<GroupCall> call = entry.call;
  call->AddListener(std::move(listener));
  keys_[name] = key;
  entries_.emplace(key, std::move(entry));
  SubmitReleased(std::move(released));
  return call;
}

std::shared_ptr<GroupCall> GroupRegistry::FindKnown(const Name& name,
                                                    const std::string& fingerprint,
                                                    absl::Status* mismatch) {
  std::shared_ptr<GroupCall> call;
  const std::string* known_fingerprint = nullptr;
  if (const auto key = keys_.find(name); key != keys_.end()) {
    const Entry& entry = entries_.at(key->second);
    call = entry.call;
    known_fingerprint = &entry.fingerprint;
  } else if (const auto done = finished_.find(name); done != finished_.end()) {
    call = done->second.call;
    known_fingerprint = &done->second.fingerprint;
  }
  if (call && *known_fingerprint != fingerprint) {
    *mismatch = absl::InvalidArgumentError(
        absl::StrCat("group ", std::get<1>(name), " of run '", std::get<0>(name),
                     "' was asked for with another prompt or other parameters"));
  }
  return call;
}

absl::Status GroupRegistry::CheckRoom(const Ask& ask) {
  if (ask.batch && ask.batch->num_groups > limits_.max_queued_groups) {
    return absl::InvalidArgumentError(absl::StrCat(
        "admission batch of ", ask.batch->num_groups,
        " groups never fits a queue of max_queued_groups = ", limits_.max_queued_groups));
  }
  const int64_t queued = CountsLocked().queued;
  if (queued >= limits_.max_queued_groups) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", queued,
                     " groups wait (max_queued_groups = ", limits_.max_queued_groups, ")"));
  }
  const double wait = static_cast<double>(queued) * start_interval_;
  if (wait > ask.seconds_left) {
    return absl::DeadlineExceededError(
        absl::StrCat("refused at once: ", queued, " groups wait and one starts every ",
                     absl::StrFormat("%.2g", start_interval_),
                     " s, so this one would start after its "
                     "deadline in ",
                     absl::StrFormat("%.2g", ask.seconds_left), " s"));
  }
  return absl::OkStatus();
}

void GroupRegistry::SubmitReleased(std::vector<GroupRequest> groups) {
  if (groups.empty()) return;
  for (const GroupRequest& group : groups) entries_.at(group.key).phase = Phase::kQueued;
  runner_.submit(std::move(groups));
}

bool GroupRegistry::Leave(const std::shared_ptr<GroupCall>& call, const GroupListener* listener) {
  MutexLock lock(&mu_);
  if (!call->RemoveListener(listener)) return false;
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& one) { return one.second.call == call; });
  if (found == entries_.end()) return false;  // finished
  const GroupKey key = found->first;
  const Entry& entry = found->second;
  if (entry.phase == Phase::kHeld) {
    batches_.Withdraw(*entry.batch, std::get<1>(entry.name));
  } else {
    runner_.abort(key);
  }
  call->End(absl::CancelledError("every caller left"));
  Remove(key);
  return true;
}

bool GroupRegistry::Abort(const std::string& run_id, int64_t group_id) {
  Listeners listeners;
  {
    MutexLock lock(&mu_);
    const std::optional<GroupKey> found = FindInFlight(run_id, group_id);
    if (!found) return false;
    const GroupKey group = *found;
    const Entry entry = entries_.at(group);
    entry.call->End(absl::AbortedError(absl::StrCat("group ", group_id, " was aborted")));
    listeners = entry.call->listeners();
    Remove(group);
    if (entry.phase == Phase::kHeld) {
      SubmitReleased(batches_.Skip(*entry.batch, group_id));
    } else {
      runner_.abort(group);
    }
  }
  Notify(listeners);
  return true;
}

bool GroupRegistry::StopEarly(const std::string& run_id, int64_t group_id) {
  {
    MutexLock lock(&mu_);
    const std::optional<GroupKey> group = FindInFlight(run_id, group_id);
    if (!group) return false;
    if (entries_.at(*group).phase != Phase::kHeld) {
      runner_.stop_early(*group);
      return true;
    }
  }
  return Abort(run_id, group_id);
}

std::optional<GroupKey> GroupRegistry::FindInFlight(const std::string& run_id,
                                                    int64_t group_id) const {
  // A guest's group may be there several times, once per question.
  const auto key = keys_.lower_bound(Name(run_id, group_id, ""));
  if (key == keys_.end() || std::get<0>(key->first) != run_id ||
      std::get<1>(key->first) != group_id) {
    return std::nullopt;
  }
  return key->second;
}

void GroupRegistry::FailAll(const absl::Status& error, bool forever) {
  Listeners listeners;
  {
    MutexLock lock(&mu_);
    if (forever) refusal_ = error;
    for (const auto& [key, entry] : entries_) {
      entry.call->End(error);
      for (auto& listener : entry.call->listeners()) listeners.push_back(std::move(listener));
      runner_.abort(key);
    }
    entries_.clear();
    keys_.clear();
    batches_ = AdmissionBatches();
    idle_.NotifyAll();
  }
  Notify(listeners);
}

void GroupRegistry::Forget(const std::string& run_id) {
  MutexLock lock(&mu_);
  batches_.Forget(run_id);
  std::erase_if(finished_, [&](const auto& one) { return std::get<0>(one.first) == run_id; });
  std::erase_if(finished_order_, [&](const Name& name) { return std::get<0>(name) == run_id; });
}

void GroupRegistry::StartDrain() {
  MutexLock lock(&mu_);
  if (refusal_.ok()) refusal_ = absl::UnavailableError("the server is draining");
}

bool GroupRegistry::WaitUntilIdle(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(&mu_);
  while (!entries_.empty()) {
    if (!idle_.WaitUntil(&mu_, deadline)) return entries_.empty();
  }
  return true;
}

void GroupRegistry::OnEvents(std::vector<EngineEvent> events) {
  Listeners listeners;
  std::vector<GroupReport> finished;
  {
    MutexLock lock(&mu_);
    for (EngineEvent& event : events) {
      for (auto& listener : Apply(std::move(event), &finished)) {
        listeners.push_back(std::move(listener));
      }
    }
  }
  Notify(listeners);
  if (!on_finished_) return;
  for (const GroupReport& report : finished) on_finished_(report);
}

void GroupRegistry::Count(const FinishedCompletion& completion, GroupReport* report) {
  const auto num_tokens = static_cast<int64_t>(completion.token_ids.size());
  ++report->num_completions;
  report->num_tokens += num_tokens;
  report->longest_tokens = std::max(report->longest_tokens, num_tokens);
  if (completion.version_spans.size() > 1) report->num_spanning_tokens += num_tokens;
}

GroupReport GroupRegistry::ReportOf(const Entry& entry, double now) {
  GroupReport report = entry.report;
  report.arrived = entry.arrived;
  report.started = entry.started;
  report.decoding = entry.decoding;
  report.ended = now;
  return report;
}

GroupRegistry::Listeners GroupRegistry::Apply(EngineEvent event,
                                              std::vector<GroupReport>* finished_groups) {
  const GroupKey key = std::visit([](const auto& one) { return one.key; }, event);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return {};  // freed while the step ran
  Entry& entry = found->second;
  const double now = clock_();
  if (const auto* started = std::get_if<GroupStarted>(&event)) {
    entry.phase = Phase::kRunning;
    entry.started = now - started->seconds_ago;
    NoteStart(now);
    return {};
  }
  if (std::holds_alternative<GroupDecoding>(event)) {
    entry.decoding = now;
    return {};
  }
  if (auto* finished = std::get_if<CompletionFinished>(&event)) {
    Count(finished->completion, &entry.report);
    entry.call->Append(std::make_shared<const FinishedCompletion>(std::move(finished->completion)));
    return entry.call->listeners();
  }
  if (const auto* failed = std::get_if<GroupFailed>(&event)) {
    entry.call->End(failed->status);
    Listeners listeners = entry.call->listeners();
    Remove(key);
    return listeners;
  }
  GroupSummary summary;
  summary.num_prompt_tokens_cached = std::get<GroupFinished>(event).num_prompt_tokens_cached;
  summary.incomplete = std::get<GroupFinished>(event).incomplete;
  summary.queue_ms = Milliseconds(entry.arrived, entry.started);
  summary.prefill_ms = Milliseconds(entry.started, entry.decoding);
  summary.decode_ms = Milliseconds(entry.decoding, now);
  entry.call->End(summary);
  finished_groups->push_back(ReportOf(entry, now));
  Listeners listeners = entry.call->listeners();
  Remember(entry);
  Remove(key);
  return listeners;
}

void GroupRegistry::OnRejected(GroupKey key, const absl::Status& status) {
  Listeners listeners;
  {
    MutexLock lock(&mu_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    found->second.call->End(status);
    listeners = found->second.call->listeners();
    Remove(key);
  }
  Notify(listeners);
}

std::optional<std::pair<std::string, int64_t>> GroupRegistry::AskedAs(GroupKey key) const {
  MutexLock lock(&mu_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return std::pair(std::get<0>(found->second.name), std::get<1>(found->second.name));
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
  return std::clamp(static_cast<int64_t>(start_interval_ * 1e3), int64_t{50}, int64_t{10000});
}

void GroupRegistry::NoteStart(double now) {
  if (last_start_ > 0) start_interval_ = 0.8 * start_interval_ + 0.2 * (now - last_start_);
  last_start_ = now;
}

void GroupRegistry::Remove(GroupKey key) {
  const auto found = entries_.find(key);
  keys_.erase(found->second.name);
  entries_.erase(found);
  if (entries_.empty()) idle_.NotifyAll();
}

void GroupRegistry::Remember(const Entry& entry) {
  if (std::get<0>(entry.name).empty() || limits_.remembered_groups == 0) return;
  finished_[entry.name] = {entry.fingerprint, entry.call};
  finished_order_.push_back(entry.name);
  if (finished_order_.size() > static_cast<size_t>(limits_.remembered_groups)) {
    finished_.erase(finished_order_.front());
    finished_order_.pop_front();
  }
}

}  // namespace tandem::rollout
