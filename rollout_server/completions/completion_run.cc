#include "rollout_server/completions/completion_run.h"

#include <atomic>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/refusal.h"
#include "common/weights/digest.h"
#include "rollout_server/service/admission.h"

namespace tandem::rollout {
namespace {

// The caller of all groups here. It is no ScopeOf, whose texts have 64 bytes, so that no call of the
// gRPC service meets one of these groups.
constexpr char kCaller[] = "completions";

int64_t NextGroupId() {
  static std::atomic<int64_t> last{0};
  return last.fetch_add(1) + 1;
}

uint64_t SaltOf(const std::string& text) {
  if (text.empty()) return 0;
  const std::string digest = Digest128(std::as_bytes(std::span(text.data(), text.size())));
  return std::stoull(digest.substr(0, 16), nullptr, 16) | uint64_t{1} << 63;
}

absl::Status CheckJob(const CompletionJob& job) {
  if (job.prompts.empty()) return InvalidArgument("there is no prompt");
  if (job.prompts.size() > kMaxJobPrompts) {
    return InvalidArgument("there are ", job.prompts.size(), " prompts, want at most ",
                           kMaxJobPrompts, ": split the request");
  }
  int64_t scored = 0;
  for (size_t i = 0; i < job.prompts.size(); ++i) {
    if (job.prompts[i].empty()) return InvalidArgument("prompt ", i, " has no tokens");
    scored += std::ssize(job.prompts[i]);
  }
  if (job.score_prompts && scored > kMaxScoreTokens) {
    return rpc::Refused(
        rpc::Refusal::kTooLarge,
        InvalidArgument("log-probs of ", scored, " prompt tokens are asked for, want at most ",
                        kMaxScoreTokens, " in one request: split it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<CompletionRun>> CompletionRun::Start(
    const ServiceParts& parts, CompletionJob job, CallerProof who,
    std::function<void()> on_progress) {
  if (parts.draining->load()) return Unavailable("the server is draining");
  TANDEM_RETURN_IF_ERROR(CheckJob(job));
  TANDEM_ASSIGN_OR_RETURN(const Standing standing, parts.ownership->CheckUser(who));
  std::shared_ptr<CompletionRun> run(
      new CompletionRun(parts, std::move(job), std::move(on_progress)));
  if (run->job_.sampling.max_new_tokens > 0) {
    if (const absl::Status joined = run->Join(who, standing); !joined.ok()) {
      parts.metrics->OnRejected(joined);
      run->Cancel();
      return joined;
    }
    if (standing == Standing::kUnowned) PutOthersBehindTheOwner(parts);
  }
  if (run->job_.score_prompts) run->StartScore(standing == Standing::kOwner);
  run->OnProgress();
  return run;
}

absl::Status CompletionRun::Join(const CallerProof& who, Standing standing) {
  for (const std::vector<int32_t>& prompt : job_.prompts) {
    const int64_t group_id = NextGroupId();
    GroupSubmission submission = {.caller = kCaller,
                                  .group_id = group_id,
                                  .fingerprint = absl::StrCat(group_id),
                                  .seconds_left = parts_.max_deadline_seconds};
    GroupRequest& request = submission.request;
    request.prompt = prompt;
    request.num_completions = job_.num_completions;
    request.priority = job_.priority;
    request.sampling = job_.sampling;
    request.adapter = job_.adapter;
    request.stream_interval = job_.stream ? parts_.stream_interval : 0;
    request.kv_salt = SaltOf(job_.cache_salt);
    TANDEM_RETURN_IF_ERROR(AdmitGroup(parts_, who, standing, &submission));
    TANDEM_ASSIGN_OR_RETURN(auto call,
                            parts_.groups->Join(std::move(submission), shared_from_this()));
    MutexLock lock(&mu_);
    prompts_.push_back({.call = std::move(call)});
  }
  return absl::OkStatus();
}

void CompletionRun::StartScore(bool is_owner) {
  std::vector<ScoreSequence> sequences;
  for (const std::vector<int32_t>& prompt : job_.prompts) {
    if (prompt.size() >= 2) sequences.push_back({.ids = prompt});
  }
  if (sequences.empty()) {
    MutexLock lock(&mu_);
    scores_.emplace();
    scores_->prompts.resize(job_.prompts.size());
    scores_->version = parts_.weights->live()->version;
    return;
  }
  {
    MutexLock lock(&mu_);
    waits_for_scores_ = true;
  }
  parts_.engine->Score(
      std::move(sequences), {.adapter = job_.adapter, .top_logprobs = job_.prompt_top_logprobs},
      [self = shared_from_this()](absl::StatusOr<ScoreResult> result) {
        self->OnScores(std::move(result));
      },
      {.is_owner = is_owner, .wanted = [self = shared_from_this()] {
         MutexLock lock(&self->mu_);
         return self->cancelled_ ? Cancelled("the caller is gone") : absl::OkStatus();
       }});
}

void CompletionRun::OnScores(absl::StatusOr<ScoreResult> result) {
  {
    MutexLock lock(&mu_);
    waits_for_scores_ = false;
    if (result.ok()) {
      scores_.emplace();
      scores_->version = result->version;
      auto next = result->scores.begin();
      for (const std::vector<int32_t>& prompt : job_.prompts) {
        scores_->prompts.emplace_back();
        if (prompt.size() >= 2) scores_->prompts.back() = std::move(*next++);
      }
    } else if (error_.ok()) {
      error_ = result.status();
    }
  }
  OnProgress();
}

CompletionRun::Item CompletionRun::Next() {
  Item item;
  bool ended = false;
  {
    MutexLock lock(&mu_);
    if (cancelled_) return Nothing{};
    if (!error_.ok()) {
      item = error_;
    } else if (waits_for_scores_) {
      return Nothing{};
    } else if (scores_) {
      item = *std::move(scores_);
      scores_.reset();
      return item;
    } else {
      size_t num_ended = 0;
      for (size_t i = 0; i < prompts_.size() && std::holds_alternative<Nothing>(item); ++i) {
        const size_t prompt = (turn_ + i) % prompts_.size();
        Prompt& one = prompts_[prompt];
        if (one.ended) {
          ++num_ended;
          continue;
        }
        item = ItemOf(prompt, one.call->Next(&one.cursor));
        if (one.ended) ++num_ended;
      }
      if (!prompts_.empty()) turn_ = (turn_ + 1) % prompts_.size();
      if (std::holds_alternative<Nothing>(item) && num_ended == prompts_.size()) item = finished_;
    }
    ended = !told_ &&
            (std::holds_alternative<Finished>(item) || std::holds_alternative<absl::Status>(item));
    told_ = told_ || ended;
  }
  if (ended) {
    const auto* const error = std::get_if<absl::Status>(&item);
    parts_.metrics->OnCall(error == nullptr ? absl::OkStatus() : *error,
                           MonotonicSeconds() - began_);
    LeaveAll();
  }
  return item;
}

CompletionRun::Item CompletionRun::ItemOf(size_t prompt, GroupCall::Item item) {
  if (auto* drawn = std::get_if<DrawnPtr>(&item)) {
    return Drawn{job_.ChoiceOf(prompt, (*drawn)->index), std::move(*drawn)};
  }
  if (auto* completion = std::get_if<CompletionPtr>(&item)) {
    return Completed{job_.ChoiceOf(prompt, (*completion)->index), std::move(*completion)};
  }
  if (const auto* report = std::get_if<GroupReport>(&item)) {
    finished_.num_prompt_tokens_cached += report->num_prompt_tokens_cached;
    prompts_[prompt].ended = true;
    return Nothing{};
  }
  if (const auto* error = std::get_if<absl::Status>(&item)) return error_ = *error;
  return Nothing{};
}

void CompletionRun::OnProgress() {
  std::function<void()> tell;
  {
    MutexLock lock(&mu_);
    if (!cancelled_) tell = on_progress_;
  }
  if (tell) tell();
}

void CompletionRun::Cancel() {
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    on_progress_ = nullptr;
  }
  LeaveAll();
}

void CompletionRun::LeaveAll() {
  std::vector<std::shared_ptr<GroupCall>> calls;
  {
    MutexLock lock(&mu_);
    for (const Prompt& one : prompts_) calls.push_back(one.call);
  }
  for (const auto& call : calls) parts_.groups->Leave(call, this);
}

}  // namespace tandem::rollout
