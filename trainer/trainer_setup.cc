// Setting a run up, in order: inputs, run directory and checkpoint, servers, the card.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/files/file_system.h"
#include "common/weights/digest.h"
#include "trainer/prompts/run_prompts.h"
#include "trainer/rollouts/server_numerics.h"
#include "trainer/run/run_card.h"
#include "trainer/run/run_owner.h"
#include "trainer/trainer_impl.h"

namespace tandem::trainer {
namespace {

constexpr std::chrono::seconds kLookUpEach(2);

absl::StatusOr<CheckpointIdentity> IdentityOf(const std::string& model,
                                              const Tokenizer& tokenizer) {
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadFile(model + "/config.json"));
  return CheckpointIdentity{Digest128(std::as_bytes(std::span(config))), tokenizer.hash()};
}

}  // namespace

absl::Status Trainer::Impl::OpenInputs() {
  TANDEM_ASSIGN_OR_RETURN(model_config, ReadModelConfig(options.model));
  TANDEM_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(options.model));
  TANDEM_ASSIGN_OR_RETURN(identity, IdentityOf(options.model, *tokenizer));
  identity.start_digest = learner->StartDigest();
  TANDEM_ASSIGN_OR_RETURN(RunPrompts prompts, OpenRunPrompts(options.data, options.seed,
                                                             options.sampling.max_new_tokens,
                                                             model_config, *tokenizer));
  train_prompts = std::move(prompts.train);
  eval_prompts = std::move(prompts.eval);
  if (train_prompts->num_dropped() > 0) {
    log::Warning("prompts over data.max_prompt_tokens were left out",
                 {{"dropped", train_prompts->num_dropped()}});
  }
  if (eval_prompts != nullptr && eval_prompts->num_dropped() > 0) {
    log::Warning("held-out prompts over data.max_prompt_tokens were left out",
                 {{"dropped", eval_prompts->num_dropped()}});
  }
  return absl::OkStatus();
}

absl::Status Trainer::Impl::OpenRun(RunMode mode) {
  TANDEM_ASSIGN_OR_RETURN(run, RunDirectory::Open(options.out, options.run_name, mode));
  const auto owner =
      OpenRunOwner(run->path() + "/owner", options.run_name, mode == RunMode::kResume);
  TANDEM_RETURN_IF_ERROR(WithExitCode(owner.status(), ExitCode::kStorage));
  run_id = owner->run_id;
  options.client.caller.UseSecret(owner->secret);
  options.push.caller.UseSecret(owner->secret);
  if (!options.history.empty()) {
    TANDEM_RETURN_IF_ERROR(WithExitCode(history.Open(options.history), ExitCode::kStorage));
  }
  if (mode == RunMode::kResume) TANDEM_RETURN_IF_ERROR(Restore());
  history.Began({.run_id = run_id,
                 .resumed = resumed,
                 .version = version,
                 .first_group = frontier * options.prompts_per_step,
                 .groups_per_step = options.prompts_per_step,
                 .num_completions = options.completions_per_prompt,
                 .max_staleness = options.max_staleness});
  buffer = std::make_unique<ExperienceBuffer>(options.max_staleness, options.prompts_per_step,
                                              options.completions_per_prompt, frontier,
                                              options.push.hold_back_versions);
  TANDEM_RETURN_IF_ERROR(
      WithExitCode(RecoverDirectories(run->path() + "/captures"), ExitCode::kStorage));
  captures = std::make_unique<CaptureWriter>(run->path() + "/captures", options.capture,
                                             options.steps, options.max_staleness);
  recent =
      std::make_unique<RecentWeights>(captures->Reach(), [this](int64_t step, int64_t of_version) {
        // The split needs no copy of the weights a step starts from: the trainer has them then.
        const int64_t lag = step - 1 - of_version;
        return captures->NeedsMasters(step) ||
               (options.split.Due(step) && lag > 0 && lag <= options.max_staleness);
      });
  TANDEM_RETURN_IF_ERROR(OpenProbe(mode));
  return WithExitCode(run->WriteConfig(context.resolved_config), ExitCode::kStorage);
}

DrawOrder Trainer::Impl::Order() const {
  return {static_cast<uint64_t>(options.seed), options.prompts_per_step, train_prompts->digest()};
}

absl::Status Trainer::Impl::Restore() {
  auto loaded = LoadLatestCheckpoint(run->checkpoints(), identity);
  if (loaded.status().code() == absl::StatusCode::kNotFound) return StartOver();
  if (!loaded.ok()) return WithExitCode(loaded.status(), ExitCode::kBadModelOrData);
  for (const std::string& refused : loaded->refused) {
    log::Error("a damaged checkpoint was passed over", {{"reason", refused}});
  }
  const Checkpoint& checkpoint = loaded->checkpoint;
  TANDEM_RETURN_IF_ERROR(WithExitCode(CheckSameOrder(checkpoint.order, Order()), ExitCode::kUsage));
  TANDEM_RETURN_IF_ERROR(learner->Restore(checkpoint.learner));
  TANDEM_RETURN_IF_ERROR(run->CutAfter(checkpoint.step));
  version = {checkpoint.step};
  saved_step = checkpoint.step;
  frontier = checkpoint.next_group_step;
  skipped_steps = frontier - version.value;
  run_id = checkpoint.run_id;
  resumed = true;
  JsonFields fields;
  for (const std::string& refused : loaded->refused)
    fields.emplace_back("refused", JsonText(refused));
  return Event("resumed", absl::StrCat("from checkpoint of step ", checkpoint.step), fields);
}

// A run that died before its first checkpoint begins again, where that was asked for: its records
// are deleted. Checkpoints that were there and are gone are a loss that only their owner can judge.
absl::Status Trainer::Impl::StartOver() {
  TANDEM_ASSIGN_OR_RETURN(const RunDirectory::Records records, run->ReadRecords());
  const bool may_start = context.mode == RunMode::kResumeOrFresh && !records.saved_checkpoint;
  if (records.last_step > 0 && !may_start) {
    return WithExitCode(
        absl::NotFoundError(absl::StrCat(
            run->checkpoints(), " has no checkpoint to go on from, and the run has records of ",
            records.last_step, " train steps, which a start at step 0 would delete: bring a ",
            "checkpoint back, or start anew with --clean or another run.name")),
        ExitCode::kBadModelOrData);
  }
  TANDEM_RETURN_IF_ERROR(run->CutAfter(-1));
  return Event("started_over",
               absl::StrCat("no checkpoint was saved before: the run begins again at step 0, and ",
                            "the records of ", records.last_step, " train steps are deleted"));
}

// Also of those that join later. On a thread of the client.
absl::Status Trainer::Impl::CheckServer(const rollout::v1::GetInfoResponse& info) const {
  TANDEM_RETURN_IF_ERROR(CheckServerNumerics(info, options.learner.numerics, options.learner.dtype,
                                             learner->kernels()));
  if (info.tokenizer_hash() == tokenizer->hash()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("it serves a model with another tokenizer (", info.tokenizer_hash(),
                   ", the trainer's is ", tokenizer->hash(), "): start it with ", options.model));
}

absl::Status Trainer::Impl::ConnectServers() {
  RolloutClientOptions client_options = options.client;
  const int64_t servers = static_cast<int64_t>(options.servers.size());
  if (options.deterministic) {
    // A step's groups are held back at their server until all of them are there.
    client_options.groups_in_flight = std::max(client_options.groups_in_flight,
                                               (options.prompts_per_step + servers - 1) / servers);
  }
  lookup = std::make_unique<ServerLookup>(options.servers, kLookUpEach, context.resolver);
  const std::vector<std::string> addresses = lookup->Addresses();
  drift.scorer = std::make_unique<ServerScorer>(addresses, options.client.call_timeout_seconds,
                                                options.client.caller);
  client = std::make_unique<RolloutClient>(
      addresses, run_id, client_options,
      [this](const rollout::v1::GetInfoResponse& info) { return CheckServer(info); },
      [this](const rollout::v1::GenerateGroupRequest& request, FinishedGroup* group) {
        group->replay = ReplayWhenDrawn(request, *group);
      });
  publisher = std::make_unique<WeightPublisher>(addresses, run_id, options.push);
  roster = std::make_unique<ServerRoster>(lookup.get(), client.get(), publisher.get(),
                                          drift.scorer.get());
  delivery = std::make_unique<Delivery>(
      client.get(), publisher.get(), options.push.hold_back_versions,
      [this](const std::string& kind, const std::string& message, JsonFields fields) {
        return Event(kind, message, std::move(fields));
      });
  TANDEM_RETURN_IF_ERROR(delivery->WaitForServers(options.client.start_patience(),
                                                  options.deterministic, *context.stop,
                                                  [this] { roster->Update(); }));
  if (Stopping()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(server_dtype, delivery->ServerDType());
  TANDEM_ASSIGN_OR_RETURN(CastWeights cast, learner->Cast(server_dtype));
  PushTotals totals;
  TANDEM_RETURN_IF_ERROR(Publish(std::move(cast), &totals));
  return delivery->Verify();
}

absl::Status Trainer::Impl::WriteCard() {
  RunCard card = {.run_id = run_id,
                  .started_at = Rfc3339Now(),
                  .seed = static_cast<uint64_t>(options.seed),
                  .deterministic = options.deterministic,
                  .model_path = options.model,
                  .model_type = model_config.model_type,
                  .tokenizer_hash = tokenizer->hash(),
                  .model_source = ReadModelSource(options.model),
                  .num_parameters = learner->num_parameters(),
                  .trainer_dtype = options.learner.dtype == ComputeDType::kBf16 ? "bf16" : "fp32",
                  .trainer_numerics = std::string(NumericsName(options.learner.numerics)),
                  .trainer_instruction_set = learner->kernels(),
                  .threads = options.learner.num_threads > 0
                                 ? options.learner.num_threads
                                 : static_cast<int64_t>(std::thread::hardware_concurrency()),
                  .libtorch = learner->library_version(),
                  .grpc = grpc::Version(),
                  .num_train_prompts = static_cast<int64_t>(train_prompts->prompts().size())};
  if (eval_prompts) card.num_eval_prompts = static_cast<int64_t>(eval_prompts->prompts().size());
  for (int i = 0; i < client->num_servers(); ++i) {
    const auto info = client->info(i);
    if (!info.has_value()) continue;
    card.servers.push_back({client->address(i),
                            info->dtype(),
                            CombinedDigest(publisher->digests()),
                            info->numerics(),
                            info->instruction_set(),
                            info->in_flight(),
                            version.value,
                            {info->injected().begin(), info->injected().end()}});
    if (info->injected().empty()) continue;
    log::Warning(
        "a rollout server injects faults on purpose (drift.inject)",
        {{"server", client->address(i)}, {"faults", absl::StrJoin(info->injected(), "; ")}});
  }
  return WithExitCode(run->WriteRunCard(ToJson(card)), ExitCode::kStorage);
}

// Of the batch that train step `step` consumes, re-scored under the weights as they are before it.
offpolicy::CaptureManifest Trainer::Impl::DescribeCapture(int64_t step) const {
  const TrainSamplingOptions& sampling = options.sampling;
  offpolicy::CaptureManifest manifest = {
      .created_at = Rfc3339Now(),
      .source = "run",
      .tandem_version = std::string(ProjectVersion()),
      .run_id = run_id,
      .step = step,
      .proximal_version = version.value,
      .model_path = options.model,
      .model_type = model_config.model_type,
      .tokenizer_hash = tokenizer->hash(),
      .model_config_digest = identity.model_config_digest,
      .sampling = {.temperature = static_cast<float>(sampling.temperature),
                   .top_k = static_cast<int32_t>(sampling.top_k),
                   .top_p = static_cast<float>(sampling.top_p > 0 ? sampling.top_p : 1),
                   .min_p = static_cast<float>(sampling.min_p),
                   .min_new_tokens = static_cast<int32_t>(sampling.min_new_tokens),
                   .max_new_tokens = static_cast<int32_t>(sampling.max_new_tokens)},
      .trainer = {options.learner.dtype == ComputeDType::kBf16 ? "bf16" : "fp32",
                  std::string(NumericsName(options.learner.numerics)), learner->kernels(),
                  learner->library_version(), options.learner.step.microbatch_tokens}};
  for (int i = 0; i < client->num_servers(); ++i) {
    if (const auto info = client->info(i)) {
      manifest.servers.push_back(DescribeServer(client->address(i), *info));
      for (const std::string& fault : info->injected()) {
        manifest.injected.push_back(absl::StrCat(client->address(i), ": ", fault));
      }
    }
  }
  return manifest;
}

}  // namespace tandem::trainer
