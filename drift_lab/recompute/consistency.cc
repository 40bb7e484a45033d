#include "drift_lab/recompute/consistency.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/lora/adapted_model.h"
#include "common/tensor/nearest_cast.h"
#include "common/weights/digest.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;

// No softmax of fp32 logits over a vocabulary gives less than this. Engines write -9999 or -1e9 for
// an unknown log-prob.
constexpr float kLeastLogprob = -1000;
// With more entropy (nats) than this, no token has a probability that rounds to 1 in fp32.
constexpr float kPointEntropy = 0.01f;

std::string CompletionName(const Capture& capture, int64_t completion) {
  const auto s = static_cast<size_t>(completion);
  return absl::StrCat("group ", capture.group_id[static_cast<size_t>(capture.group[s])],
                      ", completion ", capture.completion_index[s]);
}

// Adds a finding if wrong(t) holds for some token t; affected completions count once.
void AddIfAny(const Capture& capture, DiscreteFault fault, const std::string& what,
              const std::function<bool(size_t)>& wrong, std::vector<ConsistencyFinding>& findings) {
  int64_t num_completions = 0, num_tokens = 0;
  std::string first;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const int64_t before = num_tokens;
    for (int64_t t = capture.begin_of(s); t < capture.begin_of(s + 1); ++t) {
      if (!wrong(static_cast<size_t>(t))) continue;
      if (num_tokens++ == 0) {
        first = absl::StrCat(CompletionName(capture, s), ", token ", t - capture.begin_of(s));
      }
    }
    num_completions += num_tokens > before;
  }
  if (num_tokens == 0) return;
  findings.push_back(
      {fault,
       absl::StrCat(num_tokens, " tokens of ", num_completions, " of ", capture.num_completions(),
                    " completions ", what, " (first: ", first, ")"),
       num_completions});
}

void CheckIds(const Capture& capture, const ModelConfig& config,
              std::vector<ConsistencyFinding>& findings) {
  int64_t changed = 0, first = -1;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const auto claimed = static_cast<uint64_t>(capture.token_hash[static_cast<size_t>(s)]);
    if (claimed == 0 || claimed == HashTokenIds(capture.ids(s))) continue;
    ++changed;
    if (first < 0) first = s;
  }
  if (changed > 0) {
    findings.push_back(
        {DiscreteFault::kTokensDiffer,
         absl::StrCat(changed, " of ", capture.num_completions(),
                      " completions do not have the ids that were drawn (hash; first: ",
                      CompletionName(capture, first),
                      "): they were re-tokenised or changed on the way; carry ids, not text"),
         changed});
  }
  const auto outside = [&](int32_t id) { return id < 0 || id >= config.vocab_size; };
  AddIfAny(
      capture, DiscreteFault::kIdsOutside,
      absl::StrCat("are outside the vocabulary of ", config.vocab_size),
      [&](size_t t) { return outside(capture.token_ids[t]); }, findings);
  if (std::ranges::any_of(capture.prompt_ids, outside)) {
    findings.push_back(
        {DiscreteFault::kIdsOutside,
         absl::StrCat("a prompt has an id outside the vocabulary of ", config.vocab_size), 0});
  }
}

void CheckRecord(const Capture& capture, std::vector<ConsistencyFinding>& findings) {
  AddIfAny(
      capture, DiscreteFault::kRecordMissing,
      "have no behaviour log-prob (not finite, or a stand-in like -9999): drop such rows, never "
      "floor them",
      [&](size_t t) {
        return capture.is_drawn(static_cast<int64_t>(t)) &&
               (!std::isfinite(capture.behaviour_logprobs[t]) ||
                capture.behaviour_logprobs[t] < kLeastLogprob);
      },
      findings);
  AddIfAny(
      capture, DiscreteFault::kRecordSynthetic,
      "have a behaviour log-prob of exactly 0 though the distribution had entropy: made up, not "
      "drawn (end tokens added after the fact?)",
      [&](size_t t) {
        return capture.behaviour_logprobs[t] == 0 && capture.entropies[t] > kPointEntropy;
      },
      findings);
  AddIfAny(
      capture, DiscreteFault::kVersionsFall,
      "carry an older weight version than the token before them",
      [&](size_t t) {
        return t > 0 && capture.weight_version[t] < capture.weight_version[t - 1] &&
               std::ranges::find(capture.token_offsets, static_cast<int64_t>(t)) ==
                   capture.token_offsets.end();
      },
      findings);
}

// Whether config.json is that of the capture, and servers ran the published weights.
absl::Status CheckModelAndWeights(const Capture& capture, const std::string& model,
                                  const ModelConfig& model_config, const CaptureWeights& weights,
                                  std::vector<ConsistencyFinding>& findings) {
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadFile(model + "/config.json"));
  const std::string digest = Digest128(std::as_bytes(std::span(config)));
  const std::string& captured = capture.manifest.model_config_digest;
  if (!captured.empty() && captured != digest) {
    findings.push_back(
        {DiscreteFault::kModelDiffers,
         absl::StrCat(model, "/config.json has digest ", digest, ", the capture was made with ",
                      captured, ": name the model it was made with (--model)"),
         capture.num_completions()});
  }
  const bool bf16 =
      !capture.manifest.servers.empty() && capture.manifest.servers[0].dtype == "bf16";
  const std::set<int64_t> versions(capture.weight_version.begin(), capture.weight_version.end());
  const DType dtype = bf16 ? DType::kBF16 : DType::kF32;
  std::vector<HostTensor> base;  // what adapters stand beside
  if (!capture.manifest.servers.empty() && capture.manifest.servers[0].lora == "unmerged") {
    TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> read, ReadAdaptedTensors(model, dtype));
    TANDEM_ASSIGN_OR_RETURN(base, MatchModelTensors(model_config, std::move(read)));
    for (HostTensor& tensor : base) {
      TANDEM_ASSIGN_OR_RETURN(tensor, CastNearest(tensor, dtype));
    }
  }
  for (const int64_t version : versions) {
    const absl::Status served =
        base.empty() ? weights.CheckServed(version, dtype) : weights.CheckUnmerged(version, base);
    if (served.ok()) continue;
    if (served.code() != absl::StatusCode::kFailedPrecondition) return served;
    const offpolicy::CapturedWeights* const known = capture.WeightsOf(version);
    const bool unproven = known == nullptr || known->served.empty();
    findings.push_back({unproven ? DiscreteFault::kWeightsUnproven : DiscreteFault::kWeightsDiffer,
                        std::string(served.message()), capture.num_completions()});
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view DiscreteFaultName(DiscreteFault fault) {
  constexpr std::string_view kNames[] = {
      "tokens_differ",    "ids_outside_vocabulary", "record_missing",
      "record_synthetic", "versions_fall",          "model_differs",
      "weights_differ",   "weights_unproven",       "settings"};
  return kNames[static_cast<size_t>(fault)];
}

std::vector<ConsistencyFinding> CheckCaptureConsistency(const Capture& capture,
                                                        const ModelConfig& config) {
  std::vector<ConsistencyFinding> findings;
  const offpolicy::CapturedSampling& sampling = capture.manifest.sampling;
  if (!(sampling.temperature > 0)) {
    findings.push_back({DiscreteFault::kSettings,
                        absl::StrCat("temperature ", sampling.temperature,
                                     ": greedy tokens were not drawn, so they have no drift"),
                        capture.num_completions()});
  }
  if (sampling.min_new_tokens > 0) {
    findings.push_back(
        {DiscreteFault::kSettings,
         "min_new_tokens bans end tokens from the distribution in a way no trainer re-scores",
         capture.num_completions()});
  }
  CheckIds(capture, config, findings);
  CheckRecord(capture, findings);
  return findings;
}

absl::StatusOr<std::vector<ConsistencyFinding>> CheckConsistency(const Capture& capture,
                                                                 const ModelConfig& config,
                                                                 const std::string& model,
                                                                 const CaptureWeights& weights) {
  std::vector<ConsistencyFinding> findings = CheckCaptureConsistency(capture, config);
  TANDEM_RETURN_IF_ERROR(CheckModelAndWeights(capture, model, config, weights, findings));
  return findings;
}

}  // namespace tandem::drift
