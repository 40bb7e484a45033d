#include "drift_lab/calibration/subject.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "common/tensor/instruction_set.h"
#include "common/weights/digest.h"
#include "drift_lab/recompute/capture_weights.h"

namespace tandem::drift {
namespace {

namespace fs = std::filesystem;
using offpolicy::Capture;
using rollout::Engine;
using rollout::FinishedCompletion;

constexpr double kUpdate = 0.02;  // change per version, in standard deviations of the tensor
constexpr char kGarbled[] = "model.layers.1.mlp.up_proj.weight";

// The standard deviation of a fresh tensor. It gives a residual stream of unit size, layers whose
// output is not negligible against it, and logits with a standard deviation of 2.
double SpreadOf(const TensorSpec& spec, const ModelConfig& config) {
  if (spec.shape.size() == 1) return 0.1;  // norms, around 1
  if (spec.name == "model.embed_tokens.weight") return config.tie_word_embeddings ? 0.2 : 1;
  const double fan_in = static_cast<double>(spec.shape[1]);
  return (spec.name == "lm_head.weight" ? 2.0 : 1.0) / std::sqrt(fan_in);
}

HostTensor TensorOf(const TensorSpec& spec, std::vector<float> values) {
  auto owner = std::make_shared<std::vector<float>>(std::move(values));
  return {spec, std::as_bytes(std::span<const float>(*owner)), owner};
}

// Adds normal noise of `size` times the standard deviation of a fresh tensor.
HostTensor Moved(const HostTensor& tensor, const ModelConfig& config, double size,
                 RandomNormal& normal) {
  std::vector<float> values = FloatsOf(tensor);
  const double spread = size * SpreadOf(tensor.spec, config);
  for (float& value : values) value += static_cast<float>(spread * normal.Next());
  return TensorOf(tensor.spec, std::move(values));
}

std::vector<HostTensor> FreshTensors(const ModelConfig& config, RandomNormal& normal) {
  std::vector<HostTensor> tensors;
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    std::vector<float> values(static_cast<size_t>(spec.num_elements()));
    const double centre =
        spec.shape.size() == 1 && spec.name.find("norm") != std::string::npos ? 1 : 0;
    for (float& value : values)
      value = static_cast<float>(centre + SpreadOf(spec, config) * normal.Next());
    tensors.push_back(TensorOf(spec, std::move(values)));
  }
  return tensors;
}

rollout::GroupRequest RequestOf(const CaptureShape& shape, int64_t key, int32_t vocabulary,
                                uint64_t seed, std::mt19937_64& random) {
  rollout::GroupRequest request;
  request.key = key;
  request.num_completions = shape.completions;
  request.sampling.max_new_tokens = shape.tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = (seed << 16) + static_cast<uint64_t>(key);
  const auto range = static_cast<uint64_t>(shape.longest_prompt - shape.shortest_prompt + 1);
  const auto length = shape.shortest_prompt + static_cast<int>(random() % range);
  for (int i = 0; i < length; ++i) {
    request.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  }
  return request;
}

void AppendCompletion(const FinishedCompletion& completion, int32_t group, uint64_t seed,
                      Capture& c) {
  const size_t n = completion.token_ids.size();
  const auto append = [](const auto& from, auto& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(completion.token_ids, c.token_ids);
  append(completion.behaviour_logprobs, c.behaviour_logprobs);
  append(completion.raw_logprobs, c.raw_logprobs);
  append(completion.entropies, c.entropies);
  append(completion.logprob_second_moments, c.logprob_second_moments);
  append(completion.kept_mass, c.kept_mass);
  append(completion.decode_batch_sizes, c.decode_batch_size);
  append(completion.prefix_cached, c.prefix_cached);
  c.proximal_logprobs.insert(c.proximal_logprobs.end(), n, std::numeric_limits<float>::quiet_NaN());
  c.advantages.insert(c.advantages.end(), n, 0.0f);
  for (const VersionSpan& span : completion.version_spans) {
    c.weight_version.insert(c.weight_version.end(), static_cast<size_t>(span.num_tokens),
                            span.version.value);
  }
  c.packed_support_offsets.insert(c.packed_support_offsets.end(), n, 0);
  c.group.push_back(group);
  c.completion_index.push_back(completion.index);
  c.reward.push_back(0);
  c.masked.push_back(0);
  c.finish.push_back(static_cast<uint8_t>(offpolicy::CapturedFinish::kLength));
  c.token_hash.push_back(static_cast<int64_t>(
      HashTokenIds(completion.hashed_ids.empty() ? completion.token_ids : completion.hashed_ids)));
  c.seed.push_back(static_cast<int64_t>(seed));
  c.token_offsets.push_back(c.num_tokens());
}

void RoundRecord(double step, Capture& capture) {
  for (float& logprob : capture.behaviour_logprobs) {
    logprob = static_cast<float>(std::round(logprob / step) * step);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Subject>> Subject::Make(const std::string& model,
                                                       const std::string& directory,
                                                       uint64_t seed) {
  TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(model));
  std::unique_ptr<Subject> subject(new Subject(model, directory, std::move(config)));
  RandomNormal normal(seed);
  TANDEM_RETURN_IF_ERROR(MakeDirectories(directory + "/captures/weights"));
  TANDEM_RETURN_IF_ERROR(MakeDirectories(subject->capture_path()));  // paths go through it
  for (int64_t version = 0; version <= kSubjectVersion; ++version) {
    std::vector<HostTensor> tensors;
    if (version == 0) {
      tensors = FreshTensors(subject->config_, normal);
      TANDEM_RETURN_IF_ERROR(WriteSafetensors(model + "/model.safetensors", tensors));
    } else {
      for (const HostTensor& tensor : subject->versions_.back()) {
        tensors.push_back(Moved(tensor, subject->config_, kUpdate, normal));
      }
    }
    const std::string name = absl::StrCat("weights/v_", version, ".safetensors");
    TANDEM_RETURN_IF_ERROR(WriteSafetensors(absl::StrCat(directory, "/captures/", name), tensors));
    const DigestMap digests = DigestTensors(tensors);
    subject->weights_.push_back({.version = version,
                                 .rounding = "nearest",
                                 .served = digests,
                                 .masters = "../" + name,
                                 .masters_digest = CombinedDigest(digests)});
    subject->versions_.push_back(std::move(tensors));
  }
  return subject;
}

// The model directory itself, or a copy with another config.json.
absl::StatusOr<std::string> Subject::ModelFor(const Fault& fault) const {
  if (fault.unmodelled != Unmodelled::kRotaryBase && fault.unmodelled != Unmodelled::kNormEpsilon)
    return model_;
  ModelConfig config = config_;
  const bool rotary = fault.unmodelled == Unmodelled::kRotaryBase;
  (rotary ? config.rope.theta : config.rms_norm_eps) *= fault.amount;
  const std::string other =
      absl::StrCat(directory_, rotary ? "/model_rotary_" : "/model_epsilon_", fault.amount);
  std::error_code error;
  fs::copy(model_, other, fs::copy_options::overwrite_existing | fs::copy_options::recursive,
           error);
  if (error) return Internal("copy ", model_, " to ", other, ": ", error.message());
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically(other + "/config.json", ModelConfigToJson(config, DType::kF32)));
  return other;
}

absl::StatusOr<std::unique_ptr<Engine>> Subject::Serve(const Fault& fault) const {
  rollout::EngineOptions options;
  options.dtype = ComputeDType::kFp32;
  options.kv_capacity_tokens = 16384;
  options.num_threads = 1;
  options.faults = fault.engine;
  TANDEM_ASSIGN_OR_RETURN(const std::string model, ModelFor(fault));
  TANDEM_ASSIGN_OR_RETURN(auto engine, Engine::Create(model, options));
  RandomNormal normal(99);
  for (int64_t version = 1; version <= kSubjectVersion; ++version) {
    std::vector<HostTensor> tensors = versions_[static_cast<size_t>(version)];
    for (HostTensor& tensor : tensors) {
      if (fault.unmodelled != Unmodelled::kGarbledTensor || tensor.spec.name != kGarbled) continue;
      tensor = Moved(tensor, config_, fault.amount, normal);
    }
    TANDEM_ASSIGN_OR_RETURN(auto staged, engine->Stage(std::move(tensors)));
    engine->Install(std::move(staged), WeightVersion{version});
  }
  return engine;
}

absl::StatusOr<Capture> Subject::Sample(Engine& server, const Fault& fault,
                                        const CaptureShape& shape, uint64_t seed) const {
  std::mt19937_64 random(seed);
  std::map<int64_t, std::map<int32_t, FinishedCompletion>> completions;
  std::vector<rollout::GroupRequest> requests;
  for (int64_t key = 1; key <= shape.groups; ++key) {
    requests.push_back(
        RequestOf(shape, key, static_cast<int32_t>(config_.vocab_size), seed, random));
    TANDEM_RETURN_IF_ERROR(server.Add(requests.back()));
  }
  while (server.HasWork()) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<rollout::EngineEvent> events, server.Step());
    for (rollout::EngineEvent& event : events) {
      auto* const finished = std::get_if<rollout::CompletionFinished>(&event);
      if (finished != nullptr)
        completions[finished->key][finished->completion.index] = std::move(finished->completion);
      if (const auto* const failed = std::get_if<rollout::GroupFailed>(&event))
        return failed->status;
    }
  }
  Capture c;
  c.prompt_offsets = c.token_offsets = c.packed_support_offsets = {0};
  for (const rollout::GroupRequest& request : requests) {
    const auto place = static_cast<int32_t>(c.group_id.size());
    c.group_id.push_back(request.key);
    c.prompt_ids.insert(c.prompt_ids.end(), request.prompt.begin(), request.prompt.end());
    c.prompt_offsets.push_back(static_cast<int64_t>(c.prompt_ids.size()));
    for (const auto& [index, completion] : completions.at(request.key)) {
      AppendCompletion(completion, place, request.sampling.seed, c);
    }
  }
  if (fault.unmodelled == Unmodelled::kRoundedRecord) RoundRecord(fault.amount, c);
  offpolicy::CaptureManifest& m = c.manifest;
  m.source = "server";
  m.proximal_version = kSubjectVersion;
  m.model_path = model_;
  m.model_type = config_.model_type;
  m.sampling.temperature = 1;
  m.sampling.max_new_tokens = shape.tokens;
  m.servers = {{"in process", std::string(GitCommit()), "fp32", "fast",
                std::string(InstructionSetName(ActiveInstructionSet())), "keep"}};
  m.weights = weights_;
  m.injected = rollout::DescribeFaults(fault.engine);
  return c;
}

}  // namespace tandem::drift
