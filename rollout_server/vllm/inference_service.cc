#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_call.h"
#include "common/rpc/refusal.h"
#include "proto/vllm/inference.grpc.pb.h"
#include "rollout_server/completions/completion_run.h"
#include "rollout_server/service/call_context.h"
#include "rollout_server/vllm/inference_messages.h"
#include "rollout_server/vllm/vllm_services.h"

namespace tandem::rollout {
namespace {

constexpr int kItemsAtOnce = 1024;  // turned into responses before the first of them is sent

struct InferenceParts {
  ServiceParts service;
  WorkerThread* texts = nullptr;
};

// What both calls do: run a job and turn its items into responses, one for each completion that has
// something new. On `texts`, one after the other.
class Responses {
 public:
  explicit Responses(InferenceRequest request) : request_(std::move(request)) {}

  const InferenceRequest& request() const { return request_; }

  // How a call ends; none while more comes.
  using Ending = std::optional<absl::Status>;

  // Takes the items there are.
  Ending Take(CompletionRun& run, std::deque<vllm::GenerateResponse>* out) {
    Ending ending;
    std::map<size_t, vllm::GenerateResponse> fresh;
    for (int i = 0; i < kItemsAtOnce && !ending; ++i) {
      CompletionRun::Item item = run.Next();
      if (std::holds_alternative<CompletionRun::Nothing>(item)) break;
      if (auto* const scored = std::get_if<CompletionRun::Scored>(&item)) {
        score_ = std::move(scored->prompts[0]);
      } else if (const auto* const drawn = std::get_if<CompletionRun::Drawn>(&item)) {
        ending = ErrorOf(Add(*drawn, &fresh[drawn->choice]));
      } else if (const auto* const completed = std::get_if<CompletionRun::Completed>(&item)) {
        ending = ErrorOf(Finish(*completed, &fresh[completed->choice]));
      } else if (const auto* const error = std::get_if<absl::Status>(&item)) {
        return *error;
      } else {
        ending = absl::OkStatus();
      }
    }
    for (auto& [choice, response] : fresh) {
      response.mutable_outputs()->set_index(static_cast<uint32_t>(choice));
      if (!std::exchange(prompt_given_, true)) {
        PromptToWire(request_, score_ ? &*score_ : nullptr, response.mutable_prompt_info());
      }
      out->push_back(std::move(response));
    }
    return ending;
  }

 private:
  static Ending ErrorOf(absl::Status status) {
    return status.ok() ? Ending() : Ending(std::move(status));
  }

  absl::Status Add(const CompletionRun::Drawn& drawn, vllm::GenerateResponse* response) {
    vllm::SequenceOutput* const output = response->mutable_outputs();
    for (const DrawnToken& token : drawn.tokens->tokens) {
      AddToken(request_, token.id, token.behaviour_logprob, token.top, output);
      if (!request_.output_text) continue;
      TANDEM_ASSIGN_OR_RETURN(const std::string text, TextOfChoice(drawn.choice).Add(token.id));
      output->mutable_text()->append(text);
    }
    return absl::OkStatus();
  }

  absl::Status Finish(const CompletionRun::Completed& completed, vllm::GenerateResponse* response) {
    vllm::SequenceOutput* const output = response->mutable_outputs();
    const FinishedCompletion& completion = *completed.completion;
    if (!request_.job.stream) {
      for (size_t t = 0; t < completion.token_ids.size(); ++t) {
        AddToken(request_, completion.token_ids[t], completion.behaviour_logprobs[t],
                 completion.top.empty() ? std::vector<TopLogprob>() : completion.top[t], output);
      }
    }
    if (request_.output_text) {
      TANDEM_ASSIGN_OR_RETURN(const std::string text,
                              TextOfChoice(completed.choice).Finish(completion));
      output->mutable_text()->append(text);
    }
    FinishToWire(request_, completion, output);
    return absl::OkStatus();
  }

  ChoiceText& TextOfChoice(size_t choice) {
    return texts_.try_emplace(choice, &request_.text).first->second;
  }

  const InferenceRequest request_;
  std::optional<SequenceScore> score_;
  std::map<size_t, ChoiceText> texts_;
  bool prompt_given_ = false;
};

// A call of either method. It owns itself until gRPC's OnDone.
template <typename Reactor>
class CallOf : public Reactor, public std::enable_shared_from_this<CallOf<Reactor>> {
 public:
  CallOf(const InferenceParts& parts, grpc::CallbackServerContext* context)
      : parts_(parts), context_(context) {}

  void Begin(absl::StatusOr<InferenceRequest> request) {
    self_ = this->shared_from_this();
    if (!request.ok()) return End(request.status());
    responses_.emplace(*std::move(request));
    auto run = CompletionRun::Start(parts_.service, responses_->request().job,
                                    ProofOf(*context_, ""), [self = self_] { self->Wake(); });
    if (!run.ok()) return End(run.status());
    bool gone = false;
    {
      MutexLock lock(&mu_);
      run_ = *run;
      gone = ended_;
    }
    if (gone) return (*run)->Cancel();
    Wake();
  }

  void OnCancel() override { End(Cancelled("the caller is gone")); }

  void OnDone() override {
    if (const auto run = TakeRun()) run->Cancel();
    self_.reset();
  }

 protected:
  // Called on `texts`, one after the other, when there may be something new.
  virtual void Advance(CompletionRun& run) = 0;

  void Wake() {
    if (woken_.exchange(true)) return;
    parts_.texts->Run([self = this->shared_from_this()] {
      self->woken_.store(false);
      std::shared_ptr<CompletionRun> run;
      {
        MutexLock lock(&self->mu_);
        if (!self->ended_) run = self->run_;
      }
      if (run != nullptr) self->Advance(*run);
    });
  }

  void End(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (std::exchange(ended_, true)) return;
    }
    if (const rpc::Refusal refusal = rpc::RefusalOf(status); refusal != rpc::Refusal::kNone) {
      context_->AddTrailingMetadata(rpc::kRefusalKey, std::string(rpc::RefusalName(refusal)));
    }
    this->Finish(rpc::ToGrpc(status));
  }

  Responses& responses() { return *responses_; }

 private:
  std::shared_ptr<CompletionRun> TakeRun() {
    MutexLock lock(&mu_);
    return std::exchange(run_, nullptr);
  }

  const InferenceParts parts_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<CallOf> self_;
  std::optional<Responses> responses_;  // used on `texts`
  std::atomic<bool> woken_{false};

  Mutex mu_;
  std::shared_ptr<CompletionRun> run_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class StreamCall : public CallOf<grpc::ServerWriteReactor<vllm::GenerateResponse>> {
 public:
  using CallOf::CallOf;

  void OnWriteDone(bool ok) override {
    if (!ok) return End(Cancelled("the caller is gone"));
    writing_.store(false);
    Wake();
  }

 private:
  void Advance(CompletionRun& run) override {
    if (writing_.load()) return;
    if (waiting_.empty() && !ending_) ending_ = responses().Take(run, &waiting_);
    if (waiting_.empty()) {
      if (ending_) End(*ending_);
      return;
    }
    sent_ = std::move(waiting_.front());
    waiting_.pop_front();
    writing_.store(true);
    StartWrite(&sent_);
  }

  std::atomic<bool> writing_{false};
  // On `texts`:
  Responses::Ending ending_;
  std::deque<vllm::GenerateResponse> waiting_;
  vllm::GenerateResponse sent_;
};

class WholeCall : public CallOf<grpc::ServerUnaryReactor> {
 public:
  WholeCall(const InferenceParts& parts, grpc::CallbackServerContext* context,
            vllm::GenerateResponse* response)
      : CallOf(parts, context), response_(response) {}

 private:
  void Advance(CompletionRun& run) override {
    const Responses::Ending ending = responses().Take(run, &given_);
    if (!ending) return;
    if (ending->ok()) *response_ = std::move(given_.front());
    End(*ending);
  }

  vllm::GenerateResponse* const response_;  // gRPC's, until Finish
  std::deque<vllm::GenerateResponse> given_;
};

class Inference : public vllm::Inference::CallbackService {
 public:
  Inference(const ServiceParts& parts, const ModelFacts* facts, const PromptReader* prompts,
            WorkerThread* texts)
      : parts_{parts, texts}, facts_(facts), prompts_(prompts) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const vllm::GenerateRequest* request,
                                     vllm::GenerateResponse* response) override {
    auto call = std::make_shared<WholeCall>(parts_, context, response);
    absl::StatusOr<InferenceRequest> read = Read(*request);
    if (read.ok() && read->job.num_completions > 1) {
      read = InvalidArgument("sampling.num_sequences is ", read->job.num_completions,
                             ": Generate gives one completion; call GenerateStream");
    }
    grpc::ServerUnaryReactor* const reactor = call.get();
    call->Begin(std::move(read));
    return reactor;
  }

  grpc::ServerWriteReactor<vllm::GenerateResponse>* GenerateStream(
      grpc::CallbackServerContext* context, const vllm::GenerateRequest* request) override {
    auto call = std::make_shared<StreamCall>(parts_, context);
    absl::StatusOr<InferenceRequest> read = Read(*request);
    if (read.ok()) read->job.stream = true;
    grpc::ServerWriteReactor<vllm::GenerateResponse>* const reactor = call.get();
    call->Begin(std::move(read));
    return reactor;
  }

 private:
  absl::StatusOr<InferenceRequest> Read(const vllm::GenerateRequest& request) const {
    TANDEM_ASSIGN_OR_RETURN(InferenceRequest read, InferenceFromWire(request, *facts_, *prompts_));
    const ModelConfig& config = parts_.service.model->config;
    read.eos_token_ids = config.eos_token_ids;
    read.text.tokenizer = &parts_.service.engine->tokenizer();
    read.text.stop_ids = StopIds(read.job.sampling, config.eos_token_ids, config.vocab_size);
    return read;
  }

  const InferenceParts parts_;
  const ModelFacts* const facts_;
  const PromptReader* const prompts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeVllmInference(const ServiceParts& parts, const ModelFacts* facts,
                                                 const PromptReader* prompts, WorkerThread* texts) {
  return std::make_unique<Inference>(parts, facts, prompts, texts);
}

}  // namespace tandem::rollout
