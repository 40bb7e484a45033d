#include "rollout_server/engine/engine.h"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/model/numerics_self_test.h"
#include "common/model/safetensors.h"
#include "common/process/memory.h"
#include "common/tensor/instruction_set.h"
#include "common/tensor/nearest_cast.h"
#include "rollout_server/engine/cuda/cuda_runner.h"
#include "rollout_server/engine/failed_groups.h"
#include "rollout_server/engine/forward/kv_memory.h"
#include "rollout_server/engine/forward/model_runner.h"
#include "rollout_server/engine/forward/plan_inputs.h"
#include "rollout_server/engine/kv_capacity.h"
#include "rollout_server/engine/sampling/append_token.h"
#include "rollout_server/engine/sampling/completion_text.h"
#include "rollout_server/engine/sampling/philox.h"
#include "rollout_server/engine/sampling/sampler.h"
#include "rollout_server/engine/sampling/stop_matcher.h"
#include "rollout_server/engine/schedule/scheduler.h"
#include "rollout_server/engine/schedule/stop_ids.h"
#include "rollout_server/engine/scorer.h"
#include "rollout_server/faults/faulty_records.h"
#include "rollout_server/faults/faulty_sampling.h"
#include "rollout_server/faults/faulty_weights.h"

namespace tandem::rollout {
namespace {

int NumThreads(const EngineOptions& options) {
  if (options.num_threads > 0) return static_cast<int>(options.num_threads);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// How much memory the tensors of a model take, and how much of it is copies in the engine's dtype,
// which are given back once they are laid out.
struct TensorBytes {
  int64_t all = 0, copies = 0;
};

// Is there enough memory on the host? A push arrives in it whatever the device is, and is laid out
// there on the CPU alone.
absl::Status CheckHostMemory(const EngineOptions& options, const ModelConfig& config,
                             const TensorBytes& tensors) {
  KvMemory wanted;
  if (options.reserve_for_push) wanted.push_bytes = tensors.all - tensors.copies;
  if (options.device == Device::kCpu) {
    const int64_t num_blocks = options.kv_capacity_tokens / KvBlockPool::kBlockTokens;
    wanted.capacity_tokens = options.kv_capacity_tokens;
    wanted.cache_bytes = ModelRunner::CacheBytes(config, options.dtype, num_blocks);
    wanted.weight_bytes = tensors.all;
    if (options.reserve_for_push) wanted.push_bytes += tensors.all;
  }
  return CheckKvMemory(wanted, AvailableMemoryBytes());
}

// One that the matcher has not seen yet when the completion ends for another reason.
void CutAtStopString(const StopMatcher& stop, FinishedCompletion& completion) {
  const std::optional<size_t> at = stop.FirstIn(completion.text);
  if (!at) return;
  completion.text.resize(*at);
  completion.finish_reason = FinishReason::kStopString;
}

DType WeightDType(ComputeDType dtype) {
  return dtype == ComputeDType::kBf16 ? DType::kBF16 : DType::kF32;
}

}  // namespace

struct Engine::Impl {
  Impl(const EngineOptions& engine_options, const ModelConfig& model_config)
      : options(engine_options),
        config(model_config),
        num_blocks(engine_options.kv_capacity_tokens / KvBlockPool::kBlockTokens),
        scheduler({num_blocks, options.max_batch_sequences,
                   std::max(options.max_step_tokens, options.max_batch_sequences),
                   options.prefix_cache && options.faults.stale_prefix_fraction == 0}) {}

  const StagedWeights& Served() const {
    if (faulty) return faulty->served();
    return *weights;
  }
  absl::Status MakeRunner();
  absl::Status Reserve(const std::vector<HostTensor>& tensors);
  bool HasStalePrefix(const RunningGroup& group) const;
  absl::Status Compute(const StepPlan& plan, const StepInputs& inputs,
                       std::vector<absl::StatusOr<SampledToken>>& tokens);
  void OnAdmitted(RunningGroup& group) const;
  TokenDraw DrawOf(const Sequence& sequence, int64_t logits_row) const;
  absl::StatusOr<SampledToken> SampleFaulty(const TokenDraw& draw,
                                            std::span<const float> logits) const;
  absl::StatusOr<std::optional<FinishReason>> FinishReasonOf(Sequence& sequence) const;
  void StartMembers(RunningGroup& group, std::vector<EngineEvent>& events) const;
  absl::Status Emit(Sequence* sequence, FinishReason reason, std::vector<EngineEvent>& events);
  absl::Status EmitIfEnded(Sequence* sequence, std::vector<EngineEvent>& events);
  void EndFailed(const FailedGroups& failed, std::vector<EngineEvent>& events);
  const EngineOptions options;
  const ModelConfig config;
  const int64_t num_blocks;
  Scheduler scheduler;
  std::unique_ptr<TokenRunner> runner;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<StagedWeights> weights;  // the claimed ones
  std::optional<FaultyWeights> faulty;     // that serve in their place
  Mutex spare_mu;                          // Stage runs beside steps
  // What served before: the next version is packed into its memory, so that a push neither maps
  // hundreds of fresh megabytes nor gives them back while requests wait.
  std::unique_ptr<StagedWeights> spare ABSL_GUARDED_BY(spare_mu);
  std::vector<HostTensor> initial_tensors;
  LiveWeights live;
  std::array<uint64_t, kNumGroupFailures> num_groups_failed = {};
  uint64_t num_tokens_sampled = 0;
  uint64_t num_prompt_tokens_computed = 0;
  uint64_t num_steps = 0;
  TokenRunner::Account total;  // of all steps
  double step_seconds = 0;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

absl::Status Engine::Impl::MakeRunner() {
  if (options.device == Device::kCuda) {
    TANDEM_ASSIGN_OR_RETURN(
        runner, MakeCudaRunner(config, {.dtype = options.dtype,
                                        .num_blocks = num_blocks,
                                        .invariant = options.numerics != Numerics::kFast,
                                        .graphs = options.cuda_graphs}));
    return absl::OkStatus();
  }
  try {
    runner = std::make_unique<ModelRunner>(config, options.dtype, num_blocks, NumThreads(options),
                                           ActiveInstructionSet());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a KV cache of ",
                                                     options.kv_capacity_tokens,
                                                     " tokens: lower engine.kv_capacity_tokens"));
  }
  return absl::OkStatus();
}

// What memory must hold later is there from the start on: the place of the next weights, and the
// largest step's arrays. A server that cannot take a push says so here and not in a run.
absl::Status Engine::Impl::Reserve(const std::vector<HostTensor>& tensors) {
  if (options.reserve_for_push) {
    MutexLock lock(&spare_mu);
    TANDEM_ASSIGN_OR_RETURN(spare, runner->Pack(tensors, nullptr));
  }
  return runner->Rehearse(*weights, std::max(options.max_step_tokens, options.max_batch_sequences),
                          options.max_batch_sequences);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const std::string& model_directory,
                                                       const EngineOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model_directory));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(model_directory));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> read, ReadModelTensors(model_directory));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> matched,
                          MatchModelTensors(config, std::move(read)));
  TANDEM_RETURN_IF_ERROR(CheckFaults(options.faults, config));
  if (options.numerics != Numerics::kFast) {
    TANDEM_RETURN_IF_ERROR(CheckInvariance(config, ActiveInstructionSet()));
  }
  std::vector<HostTensor> tensors;
  TensorBytes tensor_bytes;
  for (const HostTensor& tensor : matched) {
    TANDEM_ASSIGN_OR_RETURN(HostTensor cast, CastNearest(tensor, WeightDType(options.dtype)));
    tensor_bytes.all += std::ssize(cast.bytes);
    if (cast.bytes.data() != tensor.bytes.data()) tensor_bytes.copies += std::ssize(cast.bytes);
    tensors.push_back(std::move(cast));
  }
  EngineOptions sized = options;
  TANDEM_ASSIGN_OR_RETURN(sized.kv_capacity_tokens, KvCapacityTokens(config, options));
  TANDEM_RETURN_IF_ERROR(CheckHostMemory(sized, config, tensor_bytes));
  auto impl = std::make_unique<Impl>(sized, config);
  TANDEM_RETURN_IF_ERROR(impl->MakeRunner());
  impl->tokenizer = std::move(tokenizer);
  TANDEM_ASSIGN_OR_RETURN(impl->weights, impl->runner->Pack(tensors, nullptr));
  TANDEM_RETURN_IF_ERROR(impl->Reserve(tensors));
  if (options.faults.weights()) impl->faulty.emplace(config, options.faults, tensors);
  impl->initial_tensors = std::move(tensors);
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

absl::Status Engine::Validate(const GroupRequest& request) const {
  const Impl& impl = *impl_;
  TANDEM_RETURN_IF_ERROR(ValidateSampling(request.sampling));
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return absl::InvalidArgumentError("prompt_token_ids is empty");
  if (request.num_completions < 1 || request.num_completions > impl.options.max_batch_sequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_completions is ", request.num_completions,
                     ", want 1 to max_batch_sequences = ", impl.options.max_batch_sequences));
  }
  const auto check_ids = [&](const std::vector<int32_t>& ids, const char* what) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < impl.config.vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(what, "[", i, "] is ", ids[i], ", want 0 to ", impl.config.vocab_size - 1));
    }
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(check_ids(request.prompt, "prompt_token_ids"));
  TANDEM_RETURN_IF_ERROR(check_ids(request.sampling.stop_token_ids, "sampling.stop_token_ids"));
  TANDEM_RETURN_IF_ERROR(
      CheckSomethingIsLeft(request.sampling, impl.config.eos_token_ids, impl.config.vocab_size));
  const int64_t total = prompt + request.sampling.max_new_tokens;
  if (total > impl.config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt of ", prompt, " tokens + max_new_tokens ", request.sampling.max_new_tokens, " = ",
        total, " is over the context of ", impl.config.max_position_embeddings, " tokens"));
  }
  const int64_t blocks = Scheduler::WorstCaseBlocks(request);
  if (blocks > impl.num_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the group may need ", blocks * KvBlockPool::kBlockTokens,
                     " tokens of KV cache, the server has ",
                     impl.num_blocks * KvBlockPool::kBlockTokens, " (engine.kv_capacity_tokens)"));
  }
  return absl::OkStatus();
}

absl::Status Engine::Add(GroupRequest request) {
  TANDEM_RETURN_IF_ERROR(Validate(request));
  impl_->scheduler.Add(std::move(request));
  return absl::OkStatus();
}

void Engine::PutLast(GroupKey key) { impl_->scheduler.PutLast(key); }

bool Engine::Abort(GroupKey key) { return impl_->scheduler.Abort(key); }

std::vector<EngineEvent> Engine::StopEarly(GroupKey key) {
  std::vector<EngineEvent> events;
  const RunningGroup* group = impl_->scheduler.FindRunning(key);
  if (group == nullptr) return events;
  std::vector<Sequence*> unfinished;
  for (const auto& s : group->sequences) {
    if (s->finished) continue;
    if (s->completion.token_ids.empty()) return events;
    unfinished.push_back(s.get());
  }
  for (Sequence* s : unfinished) {
    const absl::Status emitted = impl_->Emit(s, FinishReason::kStoppedEarly, events);
    if (emitted.ok()) continue;
    FailedGroups failed;
    failed.Add(*s, GroupFailure::kText, emitted);
    impl_->EndFailed(failed, events);
    return events;
  }
  std::get<GroupFinished>(events.back()).incomplete = true;
  return events;
}

bool Engine::HasWork() const { return impl_->scheduler.HasWork(); }

// What all draws of a group need, made once.
void Engine::Impl::OnAdmitted(RunningGroup& group) const {
  GroupRequest& request = group.request;
  group.stop_ids = StopIds(request.sampling, config.eos_token_ids, config.vocab_size);
  request.charge.Add(group.stop_ids.num_bytes());
}

// The next token of a sequence.
TokenDraw Engine::Impl::DrawOf(const Sequence& sequence, int64_t logits_row) const {
  const SamplingParams& sampling = sequence.group->request.sampling;
  const auto position = static_cast<uint32_t>(sequence.completion.token_ids.size());
  const bool may_stop = static_cast<int32_t>(position) >= sampling.min_new_tokens;
  return {.logits_row = logits_row,
          .params = &sampling,
          .forbidden = may_stop ? nullptr : &sequence.group->stop_ids,
          .index = static_cast<uint32_t>(sequence.completion.index),
          .position = position};
}

// Thread-safe beside other sequences.
absl::StatusOr<SampledToken> Engine::Impl::SampleFaulty(const TokenDraw& draw,
                                                        std::span<const float> logits) const {
  const uint64_t seed = draw.params->seed;
  return FaultySample(logits, *draw.params, ForbiddenIds(draw),
                      UniformDraw(seed, draw.index, draw.position), options.faults,
                      {seed, draw.index, draw.position});
}

// Why the sequence ends with its last token; nothing when it goes on. Fills `text` for stop
// strings.
absl::StatusOr<std::optional<FinishReason>> Engine::Impl::FinishReasonOf(Sequence& sequence) const {
  FinishedCompletion& completion = sequence.completion;
  const SamplingParams& sampling = sequence.group->request.sampling;
  if (sequence.group->stop_ids.Has(completion.token_ids.back())) return FinishReason::kStop;
  if (sequence.stop) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<size_t> at,
                            sequence.stop->Check(completion.token_ids));
    if (at) {
      TANDEM_ASSIGN_OR_RETURN(completion.text, CompletionText(*tokenizer, completion.token_ids));
      completion.text.resize(*at);
      return FinishReason::kStopString;
    }
  }
  if (static_cast<int32_t>(completion.token_ids.size()) >= sampling.max_new_tokens) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

// The group's first tokens were drawn.
void Engine::Impl::StartMembers(RunningGroup& group, std::vector<EngineEvent>& events) const {
  const std::vector<std::string>& stop_strings = group.request.sampling.stop_strings;
  if (!stop_strings.empty()) {
    const auto decode = [this](std::span<const int32_t> ids) {
      return CompletionText(*tokenizer, ids);
    };
    for (const auto& sequence : group.sequences) {
      sequence->stop = std::make_shared<StopMatcher>(decode, stop_strings);
    }
  }
  events.push_back(GroupDecoding{group.request.key});
}

// Hands out a finished completion and frees its blocks; after an error the sequence is as it was.
absl::Status Engine::Impl::Emit(Sequence* sequence, FinishReason reason,
                                std::vector<EngineEvent>& events) {
  FinishedCompletion& completion = sequence->completion;
  completion.finish_reason = reason;
  if (reason != FinishReason::kStopString) {
    std::span<const int32_t> shown = completion.token_ids;
    if (reason == FinishReason::kStop) shown = shown.first(shown.size() - 1);
    TANDEM_ASSIGN_OR_RETURN(completion.text, CompletionText(*tokenizer, shown));
    if (sequence->stop) CutAtStopString(*sequence->stop, completion);
  }
  const GroupRequest& request = sequence->group->request;
  TANDEM_RETURN_IF_ERROR(
      SpoilRecord(options.faults, request.sampling.seed, *tokenizer, completion));
  const GroupKey key = request.key;
  const auto found = static_cast<int32_t>(sequence->group->num_prompt_tokens_found);
  Scheduler::Finished finished = scheduler.Finish(sequence);
  events.push_back(CompletionFinished{key, std::move(finished.completion)});
  if (finished.group_ended) events.push_back(GroupFinished{key, found});
  return absl::OkStatus();
}

// After a token was added.
absl::Status Engine::Impl::EmitIfEnded(Sequence* sequence, std::vector<EngineEvent>& events) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<FinishReason> reason, FinishReasonOf(*sequence));
  return reason ? Emit(sequence, *reason, events) : absl::OkStatus();
}

void Engine::Impl::EndFailed(const FailedGroups& failed, std::vector<EngineEvent>& events) {
  for (const GroupFailed& one : failed.events()) {
    ++num_groups_failed[static_cast<size_t>(one.cause)];
    scheduler.Abort(one.key);
    events.push_back(one);
  }
}

// A fault: is the prompt's KV of the weights before?
bool Engine::Impl::HasStalePrefix(const RunningGroup& group) const {
  if (!faulty || faulty->before() == nullptr) return false;
  return FaultDraw({group.request.sampling.seed, 0, 0}, FaultStream::kStalePrefix) <
         options.faults.stale_prefix_fraction;
}

// The forward of a step; tokens[i] is what inputs.draws[i] drew.
absl::Status Engine::Impl::Compute(const StepPlan& plan, const StepInputs& inputs,
                                   std::vector<absl::StatusOr<SampledToken>>& tokens) {
  const SitePrecision precision = options.faults.precision();
  const KvQuantisation kv_quantisation = options.faults.kv_quantisation();
  if (!inputs.stale.empty()) {
    for (const Work& work : plan.work) {  // as a hit in the prefix cache would be flagged
      if (!HasStalePrefix(*work.group)) continue;
      work.group->num_prompt_tokens_found = work.group->prompt_size() - 1;
      for (const auto& sequence : work.group->sequences) {
        sequence->completion.found_kv = {live.num_installs - 1, live.num_installs};
      }
    }
    TANDEM_RETURN_IF_ERROR(runner->Run(
        *faulty->before(), inputs.stale, {}, [](int64_t, std::span<const float>) {}, precision,
        kv_quantisation));
    if (inputs.tokens.empty()) return absl::OkStatus();
  }
  std::vector<TokenDraw> draws;
  for (size_t row = 0; row < inputs.logits_rows.size(); ++row) {
    for (size_t i = inputs.draws_begin[row]; i < inputs.draws_begin[row + 1]; ++i) {
      draws.push_back(DrawOf(*inputs.draws[i], static_cast<int64_t>(row)));
    }
  }
  if (options.faults == EngineFaults{}) {
    return runner->RunAndDraw(Served(), inputs.tokens, inputs.logits_rows, draws, tokens);
  }
  const bool faulty_sampling = options.faults.transforms() || options.faults.logit_noise > 0;
  return runner->Run(
      Served(), inputs.tokens, inputs.logits_rows,
      [&](int64_t row, std::span<const float> logits) {
        for (size_t i = inputs.draws_begin[row]; i < inputs.draws_begin[row + 1]; ++i) {
          tokens[i] =
              faulty_sampling ? SampleFaulty(draws[i], logits) : DrawOnHost(draws[i], logits);
        }
      },
      precision, kv_quantisation);
}

absl::StatusOr<std::vector<EngineEvent>> Engine::Step() {
  Impl& impl = *impl_;
  std::vector<EngineEvent> events;
  const double begin = MonotonicSeconds();

  const StepPlan plan = impl.scheduler.Plan();
  for (RunningGroup* group : plan.admitted) {
    impl.OnAdmitted(*group);
    events.push_back(GroupStarted{group->request.key});
  }

  impl.runner->CopyBlocks(plan.copies);
  const StepInputs inputs =
      BuildInputs(plan, impl.options.faults.wrong_bos,
                  [&](const RunningGroup& group) { return impl.HasStalePrefix(group); });
  std::vector<absl::StatusOr<SampledToken>> tokens(inputs.draws.size());
  TANDEM_RETURN_IF_ERROR(impl.Compute(plan, inputs, tokens));
  FailedGroups failed;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].ok()) continue;
    TANDEM_RETURN_IF_ERROR(failed.AddUndrawn(*inputs.draws[i], tokens[i].status()));
  }
  impl.scheduler.Computed(plan);
  for (const Work& work : plan.work) {
    if (work.sequence != nullptr) continue;
    impl.num_prompt_tokens_computed += work.end - work.begin;
    if (work.draws && !failed.Has(work.group)) impl.StartMembers(*work.group, events);
  }
  const double drawn = MonotonicSeconds();
  for (size_t i = 0; i < tokens.size(); ++i) {
    Sequence* sequence = inputs.draws[i];
    if (failed.Has(sequence->group)) continue;
    AppendToken(*sequence, *std::move(tokens[i]), impl.live.version,
                static_cast<int32_t>(tokens.size()), drawn);
    ++impl.num_tokens_sampled;
    const absl::Status emitted = impl.EmitIfEnded(sequence, events);
    if (!emitted.ok()) failed.Add(*sequence, GroupFailure::kText, emitted);
  }
  impl.EndFailed(failed, events);
  ++impl.num_steps;
  impl.total.bytes += impl.runner->account().bytes;
  impl.total.flops += impl.runner->account().flops;
  const double seconds = MonotonicSeconds() - begin;
  impl.step_seconds += seconds;
  for (EngineEvent& event : events) {
    if (auto* started = std::get_if<GroupStarted>(&event)) started->seconds_ago = seconds;
  }
  return events;
}

absl::StatusOr<std::unique_ptr<ScoreRun>> Engine::StartScore(std::vector<ScoreSequence> sequences,
                                                             const ScoreOptions& options) {
  Impl& impl = *impl_;
  TANDEM_RETURN_IF_ERROR(ValidateScoreOptions(options));
  TANDEM_RETURN_IF_ERROR(CheckSequences(sequences, impl.config, *impl.runner));
  ScoreContext context = {impl.runner.get(),
                          impl.weights.get(),
                          &impl.live,
                          &impl.scheduler,
                          impl.options.max_batch_sequences,
                          impl.options.max_step_tokens};
  ScoreOptions how = options;
  if (options.as_served) {
    context.weights = &impl.Served();
    how.kv_quantisation = impl.options.faults.kv_quantisation();
    how.precision = impl.options.faults.precision();
  }
  return MakeScoreRun(context, std::move(sequences), how);
}

absl::StatusOr<std::vector<SequenceScore>> Engine::Score(
    const std::vector<ScoreSequence>& sequences, const ScoreOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ScoreRun> run, StartScore(sequences, options));
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const ScoreProgress progress, run->Step());
    if (progress == ScoreProgress::kDone) return run->Take();
    if (progress == ScoreProgress::kWaits) {
      return absl::ResourceExhaustedError("other scores hold the KV cache: move them on first");
    }
  }
}

absl::StatusOr<std::unique_ptr<StagedWeights>> Engine::Stage(
    std::vector<HostTensor> tensors) const {
  std::unique_ptr<StagedWeights> spare;
  {
    MutexLock lock(&impl_->spare_mu);
    spare = std::move(impl_->spare);
  }
  TANDEM_ASSIGN_OR_RETURN(auto packed, impl_->runner->Pack(tensors, std::move(spare)));
  if (!impl_->options.faults.weights()) return packed;
  auto staged = std::make_unique<StagedWithTensors>();
  staged->claimed = std::move(packed);
  staged->tensors = CopyTensors(tensors);
  return std::unique_ptr<StagedWeights>(std::move(staged));
}

std::optional<Device> Engine::arrival_memory() const {
  // Faults of weights are made from tensors on the host.
  if (impl_->options.faults.weights()) return std::nullopt;
  return impl_->runner->arrival_memory();
}

absl::StatusOr<std::unique_ptr<ArrivingWeights>> Engine::Arrive() const {
  std::unique_ptr<StagedWeights> spare;
  {
    MutexLock lock(&impl_->spare_mu);
    spare = std::move(impl_->spare);
  }
  return impl_->runner->Arrive(std::move(spare), [impl = impl_.get()](auto left) {
    MutexLock lock(&impl->spare_mu);
    if (!impl->spare) impl->spare = std::move(left);
  });
}

std::vector<GroupKey> Engine::Install(std::unique_ptr<StagedWeights> staged,
                                      WeightVersion version) {
  if (auto* with_tensors = dynamic_cast<StagedWithTensors*>(staged.get())) {
    impl_->faulty->Install(std::move(with_tensors->tensors));
    staged = std::move(with_tensors->claimed);
  }
  TANDEM_CHECK(impl_->runner->Packed(staged.get()));
  std::unique_ptr<StagedWeights> served = std::exchange(impl_->weights, std::move(staged));
  impl_->live = {version, impl_->live.num_installs + 1};
  {
    MutexLock lock(&impl_->spare_mu);
    std::swap(impl_->spare, served);
  }
  std::vector<GroupKey> ended;
  if (in_flight() == InFlight::kAbort) {
    for (const auto& group : impl_->scheduler.running()) ended.push_back(group->request.key);
    for (const GroupKey key : ended) impl_->scheduler.Abort(key);
  }
  TANDEM_CHECK(in_flight() != InFlight::kDrain || impl_->scheduler.num_running() == 0);
  impl_->scheduler.OnInstall(/*recompute=*/in_flight() == InFlight::kRecompute);
  return ended;
}

void Engine::HoldAdmissions(bool hold) { impl_->scheduler.HoldAdmissions(hold); }

InFlight Engine::in_flight() const { return impl_->options.in_flight; }
WeightVersion Engine::live_version() const { return impl_->live.version; }
const ModelConfig& Engine::config() const { return impl_->config; }
const Tokenizer& Engine::tokenizer() const { return *impl_->tokenizer; }

DType Engine::weight_dtype() const { return WeightDType(impl_->options.dtype); }

EngineStats Engine::Stats() const {
  const Scheduler& s = impl_->scheduler;
  EngineStats stats;
  stats.num_groups_waiting = s.num_waiting();
  stats.num_groups_running = s.num_running();
  stats.kv_used_tokens = s.blocks().num_held() * KvBlockPool::kBlockTokens;
  stats.kv_capacity_tokens = s.blocks().num_blocks() * KvBlockPool::kBlockTokens;
  stats.num_tokens_sampled = impl_->num_tokens_sampled;
  stats.num_prompt_tokens_computed = impl_->num_prompt_tokens_computed;
  stats.kv_findable_tokens = s.blocks().num_findable() * KvBlockPool::kBlockTokens;
  stats.num_groups_failed = impl_->num_groups_failed;
  stats.num_steps = impl_->num_steps;
  stats.step_bytes = impl_->total.bytes;
  stats.step_flops = impl_->total.flops;
  stats.step_seconds = impl_->step_seconds;
  stats.num_preemptions = s.stats().num_preemptions;
  stats.num_prefix_hits = s.stats().num_prefix_hits;
  stats.num_prefix_misses = s.stats().num_prefix_misses;
  stats.num_prefix_evictions = s.blocks().num_evictions();
  return stats;
}

absl::StatusOr<MachineLimits> Engine::MeasureLimits() { return impl_->runner->MeasureLimits(); }
std::string Engine::kernels() const { return impl_->runner->kernels(); }

const std::vector<HostTensor>& Engine::initial_tensors() const { return impl_->initial_tensors; }
void Engine::DropInitialTensors() { impl_->initial_tensors.clear(); }

}  // namespace tandem::rollout
