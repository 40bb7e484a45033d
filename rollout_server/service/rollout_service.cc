#include "rollout_server/service/services.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/rpc/grpc_call.h"
#include "common/rpc/refusal.h"
#include "proto/rollout.grpc.pb.h"
#include "rollout_server/service/admission.h"
#include "rollout_server/service/call_context.h"
#include "rollout_server/service/rollout_messages.h"

namespace tandem::rollout {
namespace {

// Sets the trailing metadata of a call that ends with `status`: the name of the refusal, if it is
// one, and when to retry if that helps.
void NameRefusal(const absl::Status& status, const ServiceParts& parts,
                 grpc::CallbackServerContext* context) {
  const rpc::Refusal refusal = rpc::RefusalOf(status);
  if (refusal == rpc::Refusal::kNone) return;
  context->AddTrailingMetadata(rpc::kRefusalKey, std::string(rpc::RefusalName(refusal)));
  if (!rpc::IsBusy(refusal)) return;
  context->AddTrailingMetadata(rpc::kRetryAfterKey, absl::StrCat(parts.groups->retry_after_ms()));
}

// One GenerateGroup call. It owns itself from Begin until gRPC's OnDone. The group that it listens
// to may hold it a moment longer, and then finds it finished.
class GenerateCall : public grpc::ServerWriteReactor<v1::GenerateGroupResponse>,
                     public GroupListener,
                     public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(const ServiceParts& parts, grpc::CallbackServerContext* context, int64_t group_id)
      : parts_(parts), context_(context) {
    response_.set_group_id(group_id);
  }

  void Begin(absl::StatusOr<GroupSubmission> submission, bool whole_group) {
    self_ = shared_from_this();
    if (!submission.ok()) return Refuse(submission.status());
    asked_.num_completions = submission->request.num_completions;
    asked_.sampling = submission->request.sampling;
    asked_.sampling.stop_token_ids = {};  // up to 1 MiB, which no response needs
    asked_.baseline = submission->request.baseline;
    whole_group_ = whole_group;
    auto call = parts_.groups->Join(*std::move(submission), self_);
    if (!call.ok()) return Refuse(call.status());
    bool gone = false;
    {
      MutexLock lock(&mu_);
      call_ = *call;
      gone = finished_;  // cancelled before it joined
    }
    if (gone) {
      parts_.groups->Leave(*call, this);
    } else {
      OnProgress();
    }
  }

  void OnProgress() override {
    MutexLock lock(&mu_);
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok) {
      WriteNext();
    } else {
      FinishOnce(grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone"));
    }
  }

  // The caller cancelled, its connection broke, or its deadline passed.
  void OnCancel() override {
    const absl::StatusCode code = CalledOff(seconds_given_, SecondsLeft(*context_));
    MutexLock lock(&mu_);
    FinishOnce(rpc::ToGrpc(absl::Status(code, "the caller is gone")));
  }

  void OnDone() override {
    std::shared_ptr<GroupCall> call;
    {
      MutexLock lock(&mu_);
      call = call_;
    }
    if (call) parts_.groups->Leave(call, this);
    self_.reset();
  }

 private:
  void Refuse(const absl::Status& status) {
    parts_.metrics->OnRejected(status);
    MutexLock lock(&mu_);
    FinishWith(status);
  }

  void FinishWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!finished_) NameRefusal(status, parts_, context_);
    FinishOnce(rpc::ToGrpc(status));
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (finished_ || writing_ || !call_) return;
    const GroupCall::Item item =
        whole_group_ ? call_->NextWhenWhole(&cursor_) : call_->Next(&cursor_);
    if (const auto* completion = std::get_if<CompletionPtr>(&item)) {
      const SamplingParams& sampling = asked_.SamplingOf((*completion)->index);
      const absl::Status fits = CheckMessage(**completion, sampling);
      if (!fits.ok()) return FinishWith(fits);
      response_.mutable_completion()->Clear();
      CompletionToWire(**completion, sampling, response_.mutable_completion());
      writing_ = true;
      StartWrite(&response_);
    } else if (const auto* turn = std::get_if<TurnPtr>(&item)) {
      response_.mutable_turn()->Clear();
      TurnToWire(**turn, response_.mutable_turn());
      writing_ = true;
      StartWrite(&response_);
    } else if (const auto* report = std::get_if<GroupReport>(&item)) {
      if (done_written_) return FinishOnce(grpc::Status::OK);
      ReportToWire(*report, response_.mutable_done());
      done_written_ = true;
      writing_ = true;
      StartWrite(&response_);
    } else if (const auto* error = std::get_if<absl::Status>(&item)) {
      FinishWith(*error);
    }
  }

  void FinishOnce(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(finished_, true)) return;
    parts_.metrics->OnCall(absl::Status(rpc::CodeOf(status), ""), MonotonicSeconds() - began_);
    Finish(status);
  }

  const ServiceParts parts_;
  grpc::CallbackServerContext* const context_;
  const double began_ = MonotonicSeconds();
  const double seconds_given_ = SecondsLeft(*context_);
  GroupRequest asked_;  // what completions on the wire need of it: how each was sampled
  bool whole_group_ = false;
  std::shared_ptr<GenerateCall> self_;

  Mutex mu_;
  std::shared_ptr<GroupCall> call_ ABSL_GUARDED_BY(mu_);
  v1::GenerateGroupResponse response_ ABSL_GUARDED_BY(mu_);  // being written while writing_
  size_t cursor_ ABSL_GUARDED_BY(mu_) = 0;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool done_written_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

// One Score call. It owns itself until gRPC's OnDone. The engine may hold it a moment longer, and
// then finds that it is cancelled.
class ScoreCall : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<ScoreCall> {
 public:
  ScoreCall(const ServiceParts& parts, grpc::CallbackServerContext* context,
            v1::ScoreResponse* response)
      : parts_(parts), context_(context), response_(response) {}

  void Begin(absl::StatusOr<ScoreQuestion> question, bool is_owner) {
    self_ = shared_from_this();
    if (!question.ok()) return Refuse(question.status());
    parts_.engine->Score(
        std::move(question->sequences), question->options,
        [call = self_](const absl::StatusOr<ScoreResult>& result) { call->Answer(result); },
        {.is_owner = is_owner, .wanted = [call = self_] { return call->Wanted(); }});
  }

  // The caller cancelled, its connection broke, or its deadline passed: gRPC's clock says when,
  // which no jump of the wall clock moves.
  void OnCancel() override { cancelled_.store(true); }
  void OnDone() override { self_.reset(); }

 private:
  absl::Status Wanted() const {
    return cancelled_.load() ? Cancelled("the caller is gone") : absl::OkStatus();
  }

  void Refuse(const absl::Status& status) {
    parts_.metrics->OnRejected(status);
    NameRefusal(status, parts_, context_);
    Finish(rpc::ToGrpc(status));
  }

  void Answer(const absl::StatusOr<ScoreResult>& result) {
    if (rpc::RefusalOf(result.status()) != rpc::Refusal::kNone) return Refuse(result.status());
    if (!result.ok()) return Finish(rpc::ToGrpc(result.status()));
    for (const SequenceScore& score : result->scores) ScoreToWire(score, response_->add_scores());
    response_->set_weight_version(result->version.value);
    Finish(grpc::Status::OK);
  }

  const ServiceParts parts_;
  grpc::CallbackServerContext* const context_;  // gRPC's, until Finish
  v1::ScoreResponse* const response_;           // gRPC's, until Finish
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<ScoreCall> self_;
};

class RolloutServiceImpl : public v1::RolloutService::CallbackService {
 public:
  explicit RolloutServiceImpl(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerWriteReactor<v1::GenerateGroupResponse>* GenerateGroup(
      grpc::CallbackServerContext* context, const v1::GenerateGroupRequest* request) override {
    auto call = std::make_shared<GenerateCall>(parts_, context, request->group_id());
    grpc::ServerWriteReactor<v1::GenerateGroupResponse>* reactor = call.get();
    absl::StatusOr<GroupSubmission> submission = Admit(*context, *request);
    const bool was_unowned = submission.ok() && submission->unowned;
    call->Begin(std::move(submission), request->delivery() == v1::DELIVERY_GROUP);
    if (was_unowned) PutOthersBehindTheOwner(parts_);
    return reactor;
  }

  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override {
    auto call = std::make_shared<ScoreCall>(parts_, context, response);
    grpc::ServerUnaryReactor* reactor = call.get();
    Standing standing = Standing::kNotOwner;
    absl::StatusOr<ScoreQuestion> question = AdmitScore(*context, *request, &standing);
    call->Begin(std::move(question), standing == Standing::kOwner);
    return reactor;
  }

  grpc::ServerUnaryReactor* AbortGroup(grpc::CallbackServerContext* context,
                                       const v1::AbortGroupRequest* request,
                                       v1::AbortGroupResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::StatusOr<bool> aborted = Abort(ProofOf(*context, request->run_id()), *request);
    if (aborted.ok()) {
      response->set_aborted(*aborted);
    } else {
      parts_.metrics->OnRejected(aborted.status());
    }
    reactor->Finish(rpc::ToGrpc(aborted.status()));
    return reactor;
  }

  grpc::ServerUnaryReactor* ContinueCompletion(grpc::CallbackServerContext* context,
                                               const v1::ContinueCompletionRequest* request,
                                               v1::ContinueCompletionResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto finish = [this, reactor](const absl::Status& status) {
      if (!status.ok()) parts_.metrics->OnRejected(status);
      reactor->Finish(rpc::ToGrpc(status));
    };
    absl::StatusOr<TurnAnswer> answer = AnswerFromWire(*request);
    absl::StatusOr<GroupKey> key =
        FindOwnGroup(ProofOf(*context, request->run_id()), request->group_id());
    if (!answer.ok() || !key.ok()) {
      finish(answer.ok() ? key.status() : answer.status());
    } else {
      parts_.engine->Continue(*key, *std::move(answer), finish);
    }
    return reactor;
  }

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context, const v1::GetInfoRequest*,
                                    v1::GetInfoResponse* response) override {
    FillInfo(response);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  absl::StatusOr<GroupSubmission> Admit(const grpc::CallbackServerContext& context,
                                        const v1::GenerateGroupRequest& request) {
    TANDEM_RETURN_IF_ERROR(CheckDeadline(context));
    const CallerProof who = ProofOf(context, request.run_id());
    TANDEM_ASSIGN_OR_RETURN(const Standing standing, parts_.ownership->CheckUser(who));
    TANDEM_ASSIGN_OR_RETURN(GroupSubmission submission, SubmissionFromWire(request));
    submission.caller = ScopeOf(who);
    submission.seconds_left = SecondsLeft(context);
    submission.trace = TraceOf(context);
    submission.min_weight_version = request.min_weight_version();
    TANDEM_RETURN_IF_ERROR(AdmitGroup(parts_, who, standing, &submission));
    return submission;
  }

  static absl::StatusOr<std::string> ScopeToActOn(const CallerProof& who) {
    std::string caller = ScopeOf(who);
    if (!caller.empty()) return caller;
    return PermissionDenied(
        "nobody can tell whose groups this caller may end or continue: show the secret that the "
        "group was asked for with (metadata '",
        rpc::kCallerSecretKey, "'), or cancel the GenerateGroup call");
  }

  // A caller may end its own groups only.
  absl::StatusOr<bool> Abort(const CallerProof& who, const v1::AbortGroupRequest& request) {
    TANDEM_RETURN_IF_ERROR(parts_.ownership->CheckUser(who).status());
    TANDEM_ASSIGN_OR_RETURN(const std::string caller, ScopeToActOn(who));
    return request.finish_early() ? parts_.groups->StopEarly(who.run_id, request.group_id(), caller)
                                  : parts_.groups->Abort(who.run_id, request.group_id(), caller);
  }

  // A group in flight that the caller asked for.
  absl::StatusOr<GroupKey> FindOwnGroup(const CallerProof& who, int64_t group_id) {
    TANDEM_RETURN_IF_ERROR(parts_.ownership->CheckUser(who).status());
    TANDEM_ASSIGN_OR_RETURN(const std::string caller, ScopeToActOn(who));
    const std::optional<GroupKey> key = parts_.groups->FindKey(who.run_id, group_id, caller);
    if (key.has_value()) return *key;
    return NotFound("no group ", group_id, " of run '", who.run_id,
                    "' is in flight: it has ended, or was never asked for by this caller");
  }

  absl::StatusOr<ScoreQuestion> AdmitScore(const grpc::CallbackServerContext& context,
                                           const v1::ScoreRequest& request, Standing* standing) {
    TANDEM_RETURN_IF_ERROR(CheckDeadline(context));
    if (parts_.draining->load()) return Unavailable("the server is draining");
    TANDEM_ASSIGN_OR_RETURN(*standing,
                            parts_.ownership->CheckUser(ProofOf(context, request.run_id())));
    return ScoreFromWire(request, parts_.model->config.vocab_size,
                         parts_.model->config.max_position_embeddings);
  }

  absl::Status CheckDeadline(const grpc::CallbackServerContext& context) const {
    const double left = SecondsLeft(context), most = parts_.max_deadline_seconds;
    if (left <= 0) {
      return DeadlineExceeded("the call's deadline passed before it started");
    }
    if (left <= most * kTimeoutRounding) return absl::OkStatus();
    return rpc::Refused(
        rpc::Refusal::kDeadlineTooFar,
        InvalidArgument(std::isinf(left) ? std::string("the call has no deadline")
                                         : absl::StrCat("the call's deadline is in ", left, " s"),
                        ": give it one of at most ", most, " s (server.max_deadline_seconds)"));
  }

  void FillInfo(v1::GetInfoResponse* info) {
    const ServedModel& model = *parts_.model;
    info->set_server_version(
        absl::StrCat(std::string(ProjectVersion()), " ", std::string(GitCommit())));
    info->set_model_type(model.config.model_type);
    info->set_model_path(model.path);
    info->set_dtype(model.options.dtype == ComputeDType::kBf16 ? "bf16" : "fp32");
    info->set_weights(model.weights);
    info->set_lora(std::string(LoraPlaceName(model.options.lora)));
    for (const auto& [name, directory] : model.options.lora_modules) info->add_adapters(name);
    info->set_numerics(std::string(NumericsName(model.options.numerics)));
    info->set_instruction_set(model.instruction_set);
    info->set_in_flight(std::string(InFlightName(model.options.in_flight)));
    for (std::string& fault : DescribeFaults(model.options.faults)) {
      info->add_injected(std::move(fault));
    }
    info->set_vocab_size(model.config.vocab_size);
    info->set_max_context_tokens(model.config.max_position_embeddings);
    info->set_tokenizer_hash(model.tokenizer_hash);
    info->set_num_threads(model.options.compute_threads());
    info->mutable_eos_token_ids()->Assign(model.config.eos_token_ids.begin(),
                                          model.config.eos_token_ids.end());
    const EngineStats stats = parts_.engine->stats();
    info->set_kv_capacity_tokens(stats.kv_capacity_tokens);
    info->set_kv_used_tokens(stats.kv_used_tokens);
    info->set_num_tokens_sampled(stats.num_tokens_sampled);
    info->set_num_prompt_tokens_computed(stats.num_prompt_tokens_computed);
    info->set_num_preemptions(stats.num_preemptions);
    info->set_num_prefix_hits(stats.num_prefix_hits);
    info->set_num_prefix_misses(stats.num_prefix_misses);
    const std::shared_ptr<const WeightReceiver::Live> live = parts_.weights->live();
    info->set_live_weight_version(live->version.value);
    info->set_weight_epoch(live->epoch);
    const GroupRegistry::Counts groups = parts_.groups->counts();
    info->set_num_groups_running(static_cast<int32_t>(groups.running));
    info->set_num_groups_queued(static_cast<int32_t>(groups.queued));
    info->set_max_deadline_ms(static_cast<int64_t>(parts_.max_deadline_seconds * 1e3));
    info->set_max_queued_groups(static_cast<int32_t>(parts_.max_queued_groups));
    info->set_owner_run_id(parts_.ownership->owner());
    info->set_draining(parts_.draining->load());
    info->set_paused(parts_.engine->paused());
    info->set_engine_silent_ms(static_cast<int64_t>(parts_.engine->SilentSeconds() * 1e3));
    info->set_max_engine_silent_ms(static_cast<int64_t>(parts_.liveness_seconds * 1e3));
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRolloutService(const ServiceParts& parts) {
  return std::make_unique<RolloutServiceImpl>(parts);
}

}  // namespace tandem::rollout
