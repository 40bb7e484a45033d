#include "rollout_server/engine/engine.h"

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/lora/adapted_model.h"
#include "common/lora/peft_files.h"
#include "common/model/numerics_self_test.h"
#include "common/tensor/instruction_set.h"
#include "common/tensor/nearest_cast.h"
#include "rollout_server/engine/cuda/cuda_runner.h"
#include "rollout_server/engine/failed_groups.h"
#include "rollout_server/engine/forward/model_runner.h"
#include "rollout_server/engine/kv_capacity.h"
#include "rollout_server/engine/sampling/completion.h"
#include "rollout_server/engine/sampling/sampler.h"
#include "rollout_server/engine/sampling/stop_matcher.h"
#include "rollout_server/engine/schedule/scheduler.h"
#include "rollout_server/engine/schedule/stop_ids.h"
#include "rollout_server/engine/scorer.h"
#include "rollout_server/engine/turns.h"
#include "rollout_server/faults/fault_hooks.h"

namespace tandem::rollout {
namespace {

absl::StatusOr<std::unique_ptr<TokenRunner>> MakeRunner(const ModelConfig& config,
                                                        const EngineOptions& options,
                                                        const QuantisationPlan& plan) {
  if (options.device == Device::kCuda) {
    if (plan.quantises() || plan.kv != KvFormat::kDtype) {
      return Unimplemented(
          "engine.device cuda with quantised weights or KV: leave engine.weights and engine.kv at "
          "dtype, or use device cpu");
    }
    return MakeCudaRunner(config, options);
  }
  try {
    return std::make_unique<ModelRunner>(config, options.dtype, plan, options.num_blocks(),
                                         options.compute_threads(), ActiveInstructionSet());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a KV cache of ", options.kv_capacity_tokens,
                             " tokens: lower engine.kv_capacity_tokens");
  }
}

// The tokens of the turn under way; of a completion of one turn, all.
std::span<const int32_t> IdsOfTurn(const Sequence& sequence) {
  return std::span(sequence.completion.token_ids).subspan(sequence.turn_begin);
}

// A stop string that the matcher has not seen yet when the completion ends for another reason.
void CutAtStopString(const StopMatcher& stop, FinishedCompletion& completion) {
  const std::optional<size_t> at = stop.FirstIn(completion.text);
  if (!at) return;
  completion.text.resize(*at);
  completion.finish_reason = FinishReason::kStopString;
}

// The engine over a model directory, with a KV cache in blocks.
class PagedEngine final : public Engine {
 public:
  PagedEngine(Model model, const EngineOptions& options, const QuantisationPlan& plan,
              std::unique_ptr<TokenRunner> runner)
      : Engine(std::move(model)),
        options_(options),
        runner_(std::move(runner)),
        faults_(FaultHooks::Make(options.faults, config(), plan, initial_tensors())),
        scheduler_({options.num_blocks(), options.max_batch_sequences,
                    std::max(options.max_step_tokens, options.max_batch_sequences),
                    options.prefix_cache && (!faults_ || faults_->allows_prefix_cache())}) {}

  // Serves initial_tensors(). What memory must hold later is allocated here: the place of the next
  // weights, and the arrays of the largest step. A server that cannot take a push fails at its
  // start and not in a run.
  absl::Status Load() {
    TANDEM_ASSIGN_OR_RETURN(weights_, runner_->Pack(initial_tensors(), nullptr));
    TANDEM_RETURN_IF_ERROR(LoadAdapters());
    if (options_.lora == LoraPlace::kUnmerged) {
      base_ = std::move(weights_);
      TANDEM_ASSIGN_OR_RETURN(weights_, runner_->Adapt(base_, nullptr));
    } else if (options_.reserve_for_push) {
      MutexLock lock(&spare_mu_);
      TANDEM_ASSIGN_OR_RETURN(spare_, runner_->Pack(initial_tensors(), nullptr));
    }
    return runner_->Rehearse(*weights_,
                             std::max(options_.max_step_tokens, options_.max_batch_sequences),
                             options_.max_batch_sequences);
  }

  absl::Status Validate(const GroupRequest& request) const override {
    TANDEM_RETURN_IF_ERROR(ValidateSampling(request.sampling));
    TANDEM_RETURN_IF_ERROR(AdapterNamed(request.adapter).status());
    const int64_t prompt = static_cast<int64_t>(request.prompt.size());
    if (prompt == 0) return InvalidArgument("prompt_token_ids is empty");
    if (request.num_completions < 1 || request.num_completions > options_.max_batch_sequences) {
      return InvalidArgument("num_completions is ", request.num_completions,
                             ", want 1 to max_batch_sequences = ", options_.max_batch_sequences);
    }
    const auto check_ids = [&](const std::vector<int32_t>& ids, const char* what) {
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] >= 0 && ids[i] < config().vocab_size) continue;
        return InvalidArgument(what, "[", i, "] is ", ids[i], ", want 0 to ",
                               config().vocab_size - 1);
      }
      return absl::OkStatus();
    };
    TANDEM_RETURN_IF_ERROR(check_ids(request.prompt, "prompt_token_ids"));
    TANDEM_RETURN_IF_ERROR(check_ids(request.sampling.stop_token_ids, "sampling.stop_token_ids"));
    TANDEM_RETURN_IF_ERROR(
        CheckSomethingIsLeft(request.sampling, config().eos_token_ids, config().vocab_size));
    TANDEM_RETURN_IF_ERROR(CheckTurns(request));
    if (request.stream_interval > 0 && faults_) {
      return Unimplemented(
          "tokens one by one with injected faults: a fault may act on the whole completion, so ask "
          "for completions when they end");
    }
    const int64_t total = prompt + request.max_completion_tokens();
    if (total > config().max_position_embeddings) {
      return InvalidArgument("prompt of ", prompt, " tokens + ",
                             request.turns ? "turns.max_completion_tokens " : "max_new_tokens ",
                             request.max_completion_tokens(), " = ", total,
                             " is over the context of ", config().max_position_embeddings,
                             " tokens");
    }
    const int64_t blocks = Scheduler::WorstCaseBlocks(request);
    if (blocks > scheduler_.blocks().num_blocks()) {
      return InvalidArgument("the group may need ", blocks * KvBlockPool::kBlockTokens,
                             " tokens of KV cache, the server has ",
                             scheduler_.blocks().num_blocks() * KvBlockPool::kBlockTokens,
                             " (engine.kv_capacity_tokens)");
    }
    return absl::OkStatus();
  }

  absl::Status Add(GroupRequest request) override {
    TANDEM_RETURN_IF_ERROR(Validate(request));
    TANDEM_ASSIGN_OR_RETURN(request.adapter_weights, AdapterNamed(request.adapter));
    if (request.adapter_weights != nullptr) request.adapter_id = request.adapter_weights->id;
    scheduler_.Add(std::move(request));
    return absl::OkStatus();
  }

  void PutLast(GroupKey key) override { scheduler_.PutLast(key); }
  bool Abort(GroupKey key) override { return scheduler_.Abort(key); }

  std::vector<EngineEvent> StopEarly(GroupKey key) override {
    std::vector<EngineEvent> events;
    const RunningGroup* group = scheduler_.FindRunning(key);
    if (group == nullptr) return events;
    std::vector<Sequence*> unfinished;
    for (const auto& s : group->sequences) {
      if (s->finished) continue;
      if (s->completion.token_ids.empty()) return events;
      unfinished.push_back(s.get());
    }
    for (Sequence* s : unfinished) {
      if (!EmitOrFail(s, FinishReason::kStoppedEarly, events)) return events;
    }
    std::get<GroupFinished>(events.back()).incomplete = true;
    return events;
  }

  absl::StatusOr<std::vector<EngineEvent>> Continue(GroupKey key,
                                                    const TurnAnswer& answer) override {
    std::vector<EngineEvent> events;
    const RunningGroup* group = scheduler_.FindRunning(key);
    if (group == nullptr) return NotFound("the group does not run any more");
    const auto member = std::ranges::find_if(
        group->sequences, [&](const auto& one) { return one->completion.index == answer.index; });
    if (member == group->sequences.end()) {
      return NotFound("the group has no completion ", answer.index);
    }
    Sequence* const sequence = member->get();
    TANDEM_ASSIGN_OR_RETURN(const bool is_new, CheckAnswer(*sequence, answer, config().vocab_size));
    if (!is_new) return events;
    if (answer.finish) {
      sequence->completion.wait_seconds += MonotonicSeconds() - sequence->last_token_at;
      EmitOrFail(sequence, sequence->completion.finish_reason, events);
      return events;
    }
    AppendGiven(*sequence, answer.token_ids, MonotonicSeconds());
    counted_.num_tokens_given += answer.token_ids.size();
    MatchStopStrings(*sequence);
    scheduler_.Continue(sequence);
    return events;
  }

  bool HasWork() const override { return scheduler_.HasWork(); }

  absl::StatusOr<std::vector<EngineEvent>> Step() override {
    std::vector<EngineEvent> events;
    const double begin = MonotonicSeconds();

    const StepPlan plan = scheduler_.Plan();
    for (RunningGroup* group : plan.admitted) {
      GroupRequest& request = group->request;  // gets what all its samples share
      group->stop_ids = StopIds(request.sampling, config().eos_token_ids, config().vocab_size);
      request.charge.Add(group->stop_ids.num_bytes());
      events.push_back(GroupStarted{request.key});
    }

    runner_->CopyBlocks(plan.copies);
    const PlanInputs inputs = BuildInputs(plan);
    std::vector<absl::StatusOr<SampledToken>> tokens(inputs.draws.size());
    TANDEM_RETURN_IF_ERROR(
        faults_ ? faults_->RunAndDraw(*runner_, *weights_, live_.num_installs, plan, inputs, tokens)
                : runner_->RunAndDraw(*weights_, inputs, tokens));
    FailedGroups failed;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].ok()) continue;
      TANDEM_RETURN_IF_ERROR(failed.AddUndrawn(*inputs.sequences[i], tokens[i].status()));
    }
    scheduler_.Computed(plan);
    for (const Work& work : plan.work) {
      if (work.sequence != nullptr) continue;
      counted_.num_prompt_tokens_computed += work.end - work.begin;
      if (work.draws && !failed.Has(work.group)) StartMembers(*work.group, events);
    }
    const double drawn = MonotonicSeconds();
    for (size_t i = 0; i < tokens.size(); ++i) {
      Sequence* sequence = inputs.sequences[i];
      if (failed.Has(sequence->group)) continue;
      AppendToken(*sequence, *std::move(tokens[i]), live_.version,
                  static_cast<int32_t>(tokens.size()), drawn);
      ++counted_.num_tokens_sampled;
      const int32_t interval = sequence->group->request.stream_interval;
      if (interval > 0 && (sequence->completion.num_tokens() - 1) % interval == 0) {
        events.push_back(TokensDrawn{sequence->group->request.key, TakeDrawn(*sequence)});
      }
      const absl::Status emitted = EmitIfEnded(sequence, events);
      if (!emitted.ok()) failed.Add(*sequence, GroupFailure::kText, emitted);
    }
    EndFailed(failed, events);
    ++counted_.num_steps;
    counted_.step_work += runner_->account();
    const double seconds = MonotonicSeconds() - begin;
    counted_.step_seconds += seconds;
    for (EngineEvent& event : events) {
      if (auto* started = std::get_if<GroupStarted>(&event)) started->seconds_ago = seconds;
    }
    return events;
  }

  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(
      std::vector<HostTensor> tensors) const override {
    TANDEM_ASSIGN_OR_RETURN(auto packed, runner_->Pack(tensors, TakeSpare()));
    return faults_ ? faults_->Stage(std::move(packed), tensors) : std::move(packed);
  }

  absl::StatusOr<std::unique_ptr<StagedWeights>> StageAs(
      const std::vector<HostTensor>& tensors, const QuantisationPlan& plan) const override {
    return runner_->PackAs(tensors, plan);
  }

  absl::StatusOr<std::unique_ptr<StagedWeights>> StageAdapter(
      const AdapterFactors& adapter) const override {
    if (base_ == nullptr) return Engine::StageAdapter(adapter);
    TANDEM_ASSIGN_OR_RETURN(auto packed, PackAdapter(config(), adapter, 0));
    return runner_->Adapt(base_, std::move(packed));
  }
  bool unmerged() const override { return base_ != nullptr; }

  std::optional<Device> arrival_memory() const override {
    if (faults_ && faults_->on_weights()) return std::nullopt;
    return runner_->arrival_memory();
  }

  absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive() const override {
    return runner_->Arrive(TakeSpare(), [this](std::unique_ptr<StagedWeights> left) {
      MutexLock lock(&spare_mu_);
      if (!spare_) spare_ = std::move(left);
    });
  }

  std::vector<GroupKey> Install(std::unique_ptr<StagedWeights> staged,
                                WeightVersion version) override {
    if (faults_) staged = faults_->Install(std::move(staged));
    TANDEM_CHECK(runner_->Packed(staged.get()));
    std::unique_ptr<StagedWeights> served = std::exchange(weights_, std::move(staged));
    live_ = {version, live_.num_installs + 1};
    {
      MutexLock lock(&spare_mu_);
      std::swap(spare_, served);
    }
    std::vector<GroupKey> ended;
    if (in_flight() == InFlight::kAbort) {
      for (const auto& group : scheduler_.running()) ended.push_back(group->request.key);
      for (const GroupKey key : ended) scheduler_.Abort(key);
    }
    TANDEM_CHECK(in_flight() != InFlight::kDrain || scheduler_.num_running() == 0);
    scheduler_.OnInstall(/*recompute=*/in_flight() == InFlight::kRecompute);
    return ended;
  }

  void HoldAdmissions(bool hold) override { scheduler_.HoldAdmissions(hold); }
  InFlight in_flight() const override { return options_.in_flight; }

  absl::StatusOr<std::unique_ptr<ScoreRun>> StartScore(std::vector<ScoreSequence> sequences,
                                                       const ScoreOptions& options) override {
    TANDEM_RETURN_IF_ERROR(ValidateScoreOptions(options));
    TANDEM_RETURN_IF_ERROR(CheckSequences(sequences, config(), *runner_));
    TANDEM_ASSIGN_OR_RETURN(const auto adapter, AdapterNamed(options.adapter));
    ScoreContext context = {runner_.get(),
                            weights_.get(),
                            &live_,
                            &scheduler_,
                            options_.max_batch_sequences,
                            options_.max_step_tokens,
                            adapter.get()};
    ScoreOptions how = options;
    if (options.as_served) {
      how.arithmetic = faults_ ? faults_->arithmetic() : ForwardArithmetic{};
      if (faults_) context.weights = &faults_->Served(*weights_);
    }
    return MakeScoreRun(context, std::move(sequences), how);
  }

  WeightVersion live_version() const override { return live_.version; }

  EngineStats Stats() const override {
    const Scheduler& s = scheduler_;
    EngineStats stats = counted_;
    stats.num_groups_waiting = s.num_waiting();
    stats.num_groups_running = s.num_running();
    for (const auto& group : s.running()) {
      if (!group->request.turns.has_value()) continue;
      stats.num_completions_waiting += std::ranges::count_if(
          group->sequences, [](const auto& one) { return one->waits && !one->finished; });
    }
    stats.kv_used_tokens = s.blocks().num_held() * KvBlockPool::kBlockTokens;
    stats.kv_capacity_tokens = s.blocks().num_blocks() * KvBlockPool::kBlockTokens;
    stats.num_preemptions = s.stats().num_preemptions;
    stats.num_prefix_hits = s.stats().num_prefix_hits;
    stats.num_prefix_misses = s.stats().num_prefix_misses;
    stats.num_prefix_evictions = s.blocks().num_evictions();
    return stats;
  }

  DigestMap served_digests() const override { return weights_->served_digests; }

  absl::StatusOr<MachineLimits> MeasureLimits() override { return runner_->MeasureLimits(); }

 private:
  std::unique_ptr<StagedWeights> TakeSpare() const ABSL_LOCKS_EXCLUDED(spare_mu_) {
    MutexLock lock(&spare_mu_);
    return std::move(spare_);
  }

  // Null for no name.
  absl::StatusOr<std::shared_ptr<const AdapterWeights>> AdapterNamed(
      const std::string& name) const {
    if (name.empty()) return nullptr;
    const auto found = adapters_.find(name);
    if (found != adapters_.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [known, adapter] : adapters_) names.push_back(known);
    return InvalidArgument(
        "no adapter is named '", name, "'; this server has ",
        names.empty() ? "none (server.engine.lora_modules)" : absl::StrJoin(names, ", "));
  }

  absl::Status LoadAdapters() {
    for (const auto& [name, directory] : options_.lora_modules) {
      auto adapter = LoadAdapter(directory, adapters_.size() + 1);
      if (!adapter.ok()) {
        return absl::Status(
            adapter.status().code(),
            absl::StrCat("server.engine.lora_modules: ", name, ": ", adapter.status().message()));
      }
      adapters_[name] = *std::move(adapter);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const AdapterWeights>> LoadAdapter(const std::string& directory,
                                                                    uint64_t id) const {
    TANDEM_ASSIGN_OR_RETURN(const LoraAdapter read, ReadPeftDirectory(directory, config()));
    TANDEM_RETURN_IF_ERROR(CheckCopies(read, initial_tensors()));
    TANDEM_ASSIGN_OR_RETURN(const AdapterFactors factors, FactorsOf(read));
    return PackAdapter(config(), factors, id);
  }

  absl::Status CheckTurns(const GroupRequest& request) const {
    if (!request.turns.has_value()) return absl::OkStatus();
    if (options_.faults.retokenise) {
      return Unimplemented(
          "several turns with the injected fault retokenise: its ids have other "
          "segments than those that were sampled");
    }
    return ValidateTurns(*request.turns);
  }

  // Why the turn ends with its last token; none when it goes on. Sets `text` for a stop string.
  absl::StatusOr<std::optional<FinishReason>> FinishReasonOf(Sequence& sequence) const {
    FinishedCompletion& completion = sequence.completion;
    const SamplingParams& sampling = sequence.sampling();
    if (sequence.group->stop_ids.Has(completion.token_ids.back())) return FinishReason::kStop;
    if (sequence.stop) {
      const std::span<const int32_t> turn = IdsOfTurn(sequence);
      TANDEM_ASSIGN_OR_RETURN(const std::optional<size_t> at, sequence.stop->Check(turn));
      if (at) {
        TANDEM_ASSIGN_OR_RETURN(completion.text, CompletionText(tokenizer(), turn));
        completion.text.resize(*at);
        return FinishReason::kStopString;
      }
    }
    if (sequence.turn_size() >= sampling.max_new_tokens ||
        completion.num_tokens() >= sequence.group->request.max_completion_tokens()) {
      return FinishReason::kLength;
    }
    return std::nullopt;
  }

  // The group's first tokens were sampled.
  void StartMembers(RunningGroup& group, std::vector<EngineEvent>& events) const {
    for (const auto& sequence : group.sequences) MatchStopStrings(*sequence);
    events.push_back(GroupDecoding{group.request.key});
  }

  // Looks for the stop strings in the turn that begins.
  void MatchStopStrings(Sequence& sequence) const {
    const std::vector<std::string>& stop_strings = sequence.group->request.sampling.stop_strings;
    if (stop_strings.empty()) return;
    const auto decode = [this](std::span<const int32_t> ids) {
      return CompletionText(tokenizer(), ids);
    };
    sequence.stop = std::make_shared<StopMatcher>(decode, stop_strings);
  }

  // Sets why the turn ended, and its text.
  absl::Status EndTurn(Sequence& sequence, FinishReason reason) const {
    FinishedCompletion& completion = sequence.completion;
    completion.finish_reason = reason;
    if (reason != FinishReason::kStopString) {
      std::span<const int32_t> shown = IdsOfTurn(sequence);
      if (reason == FinishReason::kStop) shown = shown.first(shown.size() - 1);
      TANDEM_ASSIGN_OR_RETURN(completion.text, CompletionText(tokenizer(), shown));
      if (sequence.stop) CutAtStopString(*sequence.stop, completion);
    }
    CloseTurn(sequence);
    return absl::OkStatus();
  }

  // Moves a completion, whose last turn has ended, to `events` and frees its blocks. After an error
  // its blocks are still held.
  absl::Status Emit(Sequence* sequence, std::vector<EngineEvent>& events) {
    FinishedCompletion& completion = sequence->completion;
    if (sequence->turn_begin > 0) {
      const auto before = std::span(completion.token_ids).first(sequence->turn_begin);
      TANDEM_ASSIGN_OR_RETURN(std::string text, CompletionText(tokenizer(), before));
      completion.text.insert(0, text);
    }
    if (completion.segments.size() == 1) completion.segments.clear();  // one turn, as without any
    const GroupRequest& request = sequence->group->request;
    if (faults_) {
      TANDEM_RETURN_IF_ERROR(faults_->SpoilRecord(request.sampling.seed, tokenizer(), completion));
    }
    const GroupKey key = request.key;
    if (request.stream_interval > 0 && sequence->num_streamed < completion.num_tokens()) {
      events.push_back(TokensDrawn{key, TakeDrawn(*sequence)});
    }
    const auto found = static_cast<int32_t>(sequence->group->num_prompt_tokens_found);
    Scheduler::Finished finished = scheduler_.Finish(sequence);
    events.push_back(CompletionFinished{key, std::move(finished.completion)});
    if (finished.group_ended) events.push_back(GroupFinished{key, found});
    return absl::OkStatus();
  }

  // Ends a turn, or has ended it already, and emits its completion. False: its group failed.
  bool EmitOrFail(Sequence* sequence, FinishReason reason, std::vector<EngineEvent>& events) {
    absl::Status emitted;
    const bool has_begun = sequence->turn_begin == 0 || sequence->turn_size() > 0;
    if (!sequence->waits && !has_begun) DropGiven(*sequence);
    if (sequence->waits || !has_begun) {
      sequence->completion.finish_reason = reason;
    } else {
      emitted = EndTurn(*sequence, reason);
    }
    if (emitted.ok()) emitted = Emit(sequence, events);
    if (emitted.ok()) return true;
    FailedGroups failed;
    failed.Add(*sequence, GroupFailure::kText, emitted);
    EndFailed(failed, events);
    return false;
  }

  // Call after a token was added.
  absl::Status EmitIfEnded(Sequence* sequence, std::vector<EngineEvent>& events) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<FinishReason> reason, FinishReasonOf(*sequence));
    if (!reason) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(EndTurn(*sequence, *reason));
    if (!GoesOn(*sequence)) return Emit(sequence, events);
    scheduler_.Wait(sequence);
    events.push_back(TurnFinished{sequence->group->request.key, MakeFinishedTurn(*sequence)});
    return absl::OkStatus();
  }

  void EndFailed(const FailedGroups& failed, std::vector<EngineEvent>& events) {
    for (const GroupFailed& one : failed.events()) {
      ++counted_.num_groups_failed[static_cast<size_t>(one.cause)];
      scheduler_.Abort(one.key);
      events.push_back(one);
    }
  }

  const EngineOptions options_;
  const std::unique_ptr<TokenRunner> runner_;
  const std::unique_ptr<FaultHooks> faults_;  // null in production
  Scheduler scheduler_;
  std::shared_ptr<const StagedWeights> base_;  // what unmerged adapters stand beside; else null
  std::map<std::string, std::shared_ptr<const AdapterWeights>> adapters_;
  std::unique_ptr<StagedWeights> weights_;  // the live version (the claimed one, with faults)
  mutable Mutex spare_mu_;                  // Stage runs beside steps
  // The version before, which no step reads. The next one is packed into its memory, so that a
  // weight push neither maps nor unmaps hundreds of megabytes while requests wait.
  mutable std::unique_ptr<StagedWeights> spare_ ABSL_GUARDED_BY(spare_mu_);
  LiveWeights live_;
  EngineStats counted_;  // the counters that steps add to
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const std::string& model_directory,
                                                       const EngineOptions& options) {
  Model model;
  TANDEM_ASSIGN_OR_RETURN(model.config, ReadModelConfig(model_directory));
  TANDEM_ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Load(model_directory));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> read,
                          ReadAdaptedTensors(model_directory, options.weight_dtype()));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> matched,
                          MatchModelTensors(model.config, std::move(read)));
  TANDEM_RETURN_IF_ERROR(CheckFaults(options.faults, model.config));
  TANDEM_RETURN_IF_ERROR(CheckAdapters(options));
  TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan,
                          MakeQuantisationPlan(model.config, options.quantised));
  if (options.numerics != Numerics::kFast) {
    TANDEM_RETURN_IF_ERROR(CheckInvariance(model.config, ActiveInstructionSet()));
  }
  model.weight_dtype = options.weight_dtype();
  TensorBytes tensor_bytes;
  for (const HostTensor& tensor : matched) {
    TANDEM_ASSIGN_OR_RETURN(HostTensor cast, CastNearest(tensor, model.weight_dtype));
    tensor_bytes.all += std::ssize(cast.bytes);
    if (cast.bytes.data() != tensor.bytes.data()) tensor_bytes.copies += std::ssize(cast.bytes);
    model.initial_tensors.push_back(std::move(cast));
  }
  EngineOptions sized = options;
  TANDEM_ASSIGN_OR_RETURN(sized.kv_capacity_tokens, KvCapacityTokens(model.config, options));
  TANDEM_RETURN_IF_ERROR(CheckHostMemory(sized, model.config, tensor_bytes));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TokenRunner> runner,
                          MakeRunner(model.config, sized, plan));
  model.kernels = runner->kernels();
  auto engine = std::make_unique<PagedEngine>(std::move(model), sized, plan, std::move(runner));
  TANDEM_RETURN_IF_ERROR(engine->Load());
  return engine;
}

absl::StatusOr<std::unique_ptr<StagedWeights>> Engine::StageAdapter(const AdapterFactors&) const {
  return FailedPrecondition("this engine merges adapters: set server.engine.lora to unmerged");
}

absl::StatusOr<std::unique_ptr<StagedWeights>> Engine::StageAs(const std::vector<HostTensor>&,
                                                               const QuantisationPlan&) const {
  return Unimplemented("this engine does not quantise");
}

absl::StatusOr<std::vector<SequenceScore>> Engine::Score(
    const std::vector<ScoreSequence>& sequences, const ScoreOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ScoreRun> run, StartScore(sequences, options));
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const ScoreProgress progress, run->Step());
    if (progress == ScoreProgress::kDone) return run->Take();
    if (progress == ScoreProgress::kWaits) {
      return ResourceExhausted("other scores hold the KV cache: move them on first");
    }
  }
}

}  // namespace tandem::rollout
