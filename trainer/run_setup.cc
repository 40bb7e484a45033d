#include "trainer/run_setup.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/files/file_system.h"
#include "common/hub/hub_cache.h"
#include "common/model/formats/plan_text.h"
#include "common/weights/digest.h"
#include "trainer/environments/environment_check.h"
#include "trainer/experience/group_capture.h"
#include "trainer/prompts/prompt_source.h"
#include "trainer/rewards/model/model_reward.h"
#include "trainer/rollouts/server_info.h"

namespace tandem::trainer {
namespace {

using nlohmann::ordered_json;

void WarnOfLongPrompts(const PromptSource* prompts, const char* what) {
  if (prompts == nullptr || prompts->num_dropped() == 0) return;
  log::Warning(absl::StrCat(what, " over data.max_prompt_tokens were left out"),
               {{"dropped", prompts->num_dropped()}});
}

absl::Status OpenModelAndPrompts(const TrainerOptions& options, const DataOptions& data,
                                 const Learner& learner, RunInputs* inputs) {
  TANDEM_ASSIGN_OR_RETURN(inputs->model_config, ReadModelConfig(options.model));
  TANDEM_ASSIGN_OR_RETURN(inputs->tokenizer, Tokenizer::Load(options.model));
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadFile(options.model + "/config.json"));
  TANDEM_ASSIGN_OR_RETURN(
      inputs->prompts, OpenRunPrompts(data, options.seed, LongestOf(options), inputs->model_config,
                                      *inputs->tokenizer));
  TANDEM_ASSIGN_OR_RETURN(
      inputs->curriculum,
      Curriculum::Create(options.curriculum, static_cast<uint64_t>(options.seed),
                         inputs->prompts.train->prompts()));
  WarnOfLongPrompts(inputs->prompts.train.get(), "prompts");
  WarnOfLongPrompts(inputs->prompts.eval.get(), "held-out prompts");
  inputs->identity = {
      .model = options.model,
      .model_identity = {.model_config_digest = Digest128(std::as_bytes(std::span(config))),
                         .tokenizer_hash = inputs->tokenizer->hash(),
                         .start_digest = learner.StartDigest()},
      .order = {static_cast<uint64_t>(options.seed), options.prompts_per_step,
                inputs->prompts.train->digest()}};
  return absl::OkStatus();
}

// Null where no component is a model.
absl::StatusOr<std::shared_ptr<RewardScorer>> OpenRewardModel(const RewardOptions& options,
                                                              const Tokenizer& of_policy) {
  const auto names = ComputedComponents(options);
  if (std::ranges::find(names, "model") == names.end()) return nullptr;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<RewardScorer> scorer, RewardScorer::Load(options.model));
  if (scorer->tokenizer().hash() != of_policy.hash()) {
    log::Warning(
        "the reward model has another tokenizer than the policy: it encodes the rendered prompt "
        "and the text of each completion anew, the policy's special tokens as text",
        {{"reward_model", options.model.paths[0]}});
  }
  return scorer;
}

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

int64_t MemoryGib() {
  const int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return (bytes + (int64_t{1} << 29)) >> 30;
}

// Where the weights of a model directory come from: its SOURCE.txt, which whoever makes the directory
// may write; else NAME@COMMIT where it is in the cache of the Hugging Face Hub; else empty.
std::string ReadModelSource(const std::string& model_directory) {
  const auto text = ReadFile(model_directory + "/SOURCE.txt");
  if (text.ok()) return std::string(absl::StripAsciiWhitespace(*text));
  const std::string name = hub::NameOfSnapshot(model_directory);
  return name.empty() ? "" : name + " of the Hugging Face Hub";
}

std::string DtypeName(const LearnerOptions& learner) {
  return learner.dtype == ComputeDType::kBf16 ? "bf16" : "fp32";
}

}  // namespace

absl::StatusOr<RunInputs> OpenRunInputs(const TrainerOptions& options, const Learner& learner) {
  RunInputs inputs;
  // The options first, since a model takes long to load.
  TANDEM_RETURN_IF_ERROR(
      WithExitCode(RewardFunction::Create(options.reward).status(), ExitCode::kUsage));
  const auto data = WithTools(options.data, options.environment, options.model);
  TANDEM_RETURN_IF_ERROR(WithExitCode(data.status(), ExitCode::kUsage));
  TANDEM_RETURN_IF_ERROR(WithExitCode(OpenModelAndPrompts(options, *data, learner, &inputs),
                                      ExitCode::kBadModelOrData));
  if (HasEnvironment(options.environment)) {
    auto pool =
        EnvironmentPool::Create(options.environment, inputs.tokenizer.get(),
                                inputs.model_config.eos_token_ids, ReadChatTemplate(options.model));
    TANDEM_RETURN_IF_ERROR(WithExitCode(pool.status(), ExitCode::kBadModelOrData));
    inputs.environments = *std::move(pool);
  }
  auto scorer = OpenRewardModel(options.reward, *inputs.tokenizer);
  TANDEM_RETURN_IF_ERROR(WithExitCode(scorer.status(), ExitCode::kBadModelOrData));
  auto rewards =
      RewardFunction::Create(options.reward, *scorer == nullptr ? nullptr : AskModel(*scorer));
  TANDEM_RETURN_IF_ERROR(WithExitCode(rewards.status(), ExitCode::kUsage));
  const std::string& row = inputs.prompts.train->prompts()[0].source_json();
  TANDEM_RETURN_IF_ERROR(WithExitCode((*rewards)->Check(row), ExitCode::kUsage));
  inputs.rewards = *std::move(rewards);
  return inputs;
}

absl::Status CheckServer(const rollout::v1::GetInfoResponse& info, const TrainerOptions& options,
                         const Learner& learner, const Tokenizer& tokenizer) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options.model));
  TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan,
                          MakeQuantisationPlan(config, options.learner.fake_quantise));
  TANDEM_RETURN_IF_ERROR(
      CheckServerNumerics(info, {options.learner.numerics, options.learner.dtype, learner.kernels(),
                                 PlanText(plan), options.learner.lora.enabled()}));
  if (info.tokenizer_hash() == tokenizer.hash()) return absl::OkStatus();
  return InvalidArgument("it serves a model with another tokenizer (", info.tokenizer_hash(),
                         ", the trainer's is ", tokenizer.hash(), "): start it with ",
                         options.model);
}

std::string DescribeRun(const RunParts& run) {
  const auto& [options, inputs, state, learner, client, publisher] = run;
  ordered_json servers = ordered_json::array();
  for (int i = 0; i < client.num_servers(); ++i) {
    const auto info = client.info(i);
    if (!info.has_value()) continue;
    const std::vector<std::string> injected(info->injected().begin(), info->injected().end());
    servers.push_back({{"address", client.address(i)},
                       {"dtype", info->dtype()},
                       {"numerics", info->numerics()},
                       {"weights", info->weights()},
                       {"instruction_set", info->instruction_set()},
                       {"in_flight", info->in_flight()},
                       {"version", state.version.value},
                       {"weight_digest", CombinedDigest(publisher.digests())},
                       {"injected", injected}});
    if (injected.empty()) continue;
    log::Warning("a rollout server injects faults on purpose (drift.inject)",
                 {{"server", client.address(i)}, {"faults", absl::StrJoin(injected, "; ")}});
  }
  const int64_t cores = std::thread::hardware_concurrency();
  const ordered_json card = {
      {"schema", 1},
      {"run_id", state.run_id},
      {"started_at", Rfc3339Now()},
      {"seed", static_cast<uint64_t>(options.seed)},
      {"deterministic", options.deterministic},
      {"model",
       {{"path", options.model},
        {"type", inputs.model_config.model_type},
        {"source", ReadModelSource(options.model)},
        {"num_parameters", learner.num_parameters()},
        {"tokenizer_hash", inputs.tokenizer->hash()}}},
      {"trainer",
       {{"dtype", DtypeName(options.learner)},
        {"numerics", NumericsName(options.learner.numerics)},
        {"instruction_set", learner.kernels()},
        {"threads", options.learner.num_threads > 0 ? options.learner.num_threads : cores}}},
      {"servers", servers},
      {"versions",
       {{"tandem", std::string(ProjectVersion()) + " (" + std::string(GitCommit()) + ")"},
        {"libtorch", learner.library_version()},
        {"grpc", grpc::Version()}}},
      {"hardware", {{"cpu", CpuName()}, {"cores", cores}, {"memory_gib", MemoryGib()}}},
      {"task",
       {{"num_train_prompts", inputs.prompts.train->prompts().size()},
        {"num_eval_prompts", inputs.prompts.eval ? inputs.prompts.eval->prompts().size() : 0}}}};
  return card.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

namespace {

// What the trainer's forward imitates. The options were checked when the policy was made.
std::string TrainerFormats(const TrainerOptions& options, const ModelConfig& config) {
  const auto plan = MakeQuantisationPlan(config, options.learner.fake_quantise);
  return plan.ok() ? PlanText(*plan) : "dtype";
}

}  // namespace

offpolicy::CaptureManifest DescribeCapture(const RunParts& run, int64_t step) {
  const auto& [options, inputs, state, learner, client, publisher] = run;
  const TrainSamplingOptions& sampling = options.sampling;
  offpolicy::CaptureManifest manifest = {
      .created_at = Rfc3339Now(),
      .source = "run",
      .tandem_version = std::string(ProjectVersion()),
      .run_id = state.run_id,
      .step = step,
      .proximal_version = state.version.value,
      .model_path = options.model,
      .model_type = inputs.model_config.model_type,
      .tokenizer_hash = inputs.tokenizer->hash(),
      .model_config_digest = inputs.identity.model_identity.model_config_digest,
      .sampling = {.temperature = static_cast<float>(sampling.temperature),
                   .top_k = static_cast<int32_t>(sampling.top_k),
                   .top_p = static_cast<float>(sampling.top_p > 0 ? sampling.top_p : 1),
                   .min_p = static_cast<float>(sampling.min_p),
                   .min_new_tokens = static_cast<int32_t>(sampling.min_new_tokens),
                   .max_new_tokens = static_cast<int32_t>(sampling.max_new_tokens)},
      .trainer = {DtypeName(options.learner), std::string(NumericsName(options.learner.numerics)),
                  learner.kernels(), learner.library_version(),
                  options.learner.step.microbatch_tokens,
                  TrainerFormats(options, inputs.model_config)}};
  for (int i = 0; i < client.num_servers(); ++i) {
    if (const auto info = client.info(i)) {
      manifest.servers.push_back(DescribeServer(client.address(i), *info));
      for (const std::string& fault : info->injected()) {
        manifest.injected.push_back(absl::StrCat(client.address(i), ": ", fault));
      }
    }
  }
  return manifest;
}

}  // namespace tandem::trainer
