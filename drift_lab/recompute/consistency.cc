#include "drift_lab/recompute/consistency.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/weights/digest.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;

// No softmax of fp32 logits over a vocabulary gives less than this; engines write -9999 or -1e9 for
// "not known".
constexpr float kLeastLogprob = -1000;
// A distribution with more entropy than this has no token of probability 1 - 2^-25.
constexpr float kPointEntropy = 0.01f;

// Collects the completions for which some token is wrong.
struct Suspects {
  int64_t num_completions = 0, num_tokens = 0;
  int64_t first_completion = -1, first_position = -1;

  void Add(int64_t completion, int64_t position) {
    if (first_completion < 0) {
      first_completion = completion;
      first_position = position;
    }
    ++num_tokens;
  }
};

std::string Where(const Capture& capture, const Suspects& suspects) {
  const auto s = static_cast<size_t>(suspects.first_completion);
  return absl::StrCat("first: group ", capture.group_id[static_cast<size_t>(capture.group[s])],
                      ", completion ", capture.completion_index[s], ", token ",
                      suspects.first_position);
}

// Tokens for which wrong(t) holds; completions count once.
Suspects Find(const Capture& capture, const std::function<bool(size_t)>& wrong) {
  Suspects suspects;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const int64_t before = suspects.num_tokens;
    const int64_t begin = capture.token_offsets[static_cast<size_t>(s)];
    for (int64_t t = begin; t < capture.token_offsets[static_cast<size_t>(s) + 1]; ++t) {
      if (wrong(static_cast<size_t>(t))) suspects.Add(s, t - begin);
    }
    suspects.num_completions += suspects.num_tokens > before;
  }
  return suspects;
}

void AddIfAny(const Capture& capture, DiscreteFault fault, const Suspects& suspects,
              const std::string& what, std::vector<GateFinding>& findings) {
  if (suspects.num_tokens == 0) return;
  findings.push_back({fault,
                      absl::StrCat(suspects.num_tokens, " tokens of ", suspects.num_completions,
                                   " of ", capture.num_completions(), " completions ", what, " (",
                                   Where(capture, suspects), ")"),
                      suspects.num_completions});
}

void CheckIds(const Capture& capture, const ModelConfig& config,
              std::vector<GateFinding>& findings) {
  int64_t changed = 0, first = -1;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const auto claimed = static_cast<uint64_t>(capture.token_hash[static_cast<size_t>(s)]);
    if (claimed == 0 || claimed == HashTokenIds(capture.ids(s))) continue;
    ++changed;
    if (first < 0) first = s;
  }
  if (changed > 0) {
    const auto s = static_cast<size_t>(first);
    findings.push_back(
        {DiscreteFault::kTokensDiffer,
         absl::StrCat(changed, " of ", capture.num_completions(),
                      " completions do not have the ids that were drawn (hash; first: group ",
                      capture.group_id[static_cast<size_t>(capture.group[s])], ", completion ",
                      capture.completion_index[s],
                      "): they were re-tokenised or changed on the way; carry ids, not text"),
         changed});
  }
  const auto outside = [&](int32_t id) { return id < 0 || id >= config.vocab_size; };
  AddIfAny(capture, DiscreteFault::kIdsOutside,
           Find(capture, [&](size_t t) { return outside(capture.token_ids[t]); }),
           absl::StrCat("are outside the vocabulary of ", config.vocab_size), findings);
  if (std::ranges::any_of(capture.prompt_ids, outside)) {
    findings.push_back(
        {DiscreteFault::kIdsOutside,
         absl::StrCat("a prompt has an id outside the vocabulary of ", config.vocab_size), 0});
  }
}

void CheckRecord(const Capture& capture, std::vector<GateFinding>& findings) {
  AddIfAny(capture, DiscreteFault::kRecordMissing,
           Find(capture,
                [&](size_t t) {
                  return !std::isfinite(capture.behaviour_logprobs[t]) ||
                         capture.behaviour_logprobs[t] < kLeastLogprob;
                }),
           "have no behaviour log-prob (not finite, or a stand-in like -9999): drop such rows, "
           "never floor them",
           findings);
  AddIfAny(
      capture, DiscreteFault::kRecordSynthetic,
      Find(capture,
           [&](size_t t) {
             return capture.behaviour_logprobs[t] == 0 && capture.entropies[t] > kPointEntropy;
           }),
      "have a behaviour log-prob of exactly 0 though the distribution had entropy: made up, not "
      "drawn (end tokens added after the fact?)",
      findings);
  AddIfAny(capture, DiscreteFault::kVersionsFall,
           Find(capture,
                [&](size_t t) {
                  return t > 0 && capture.weight_version[t] < capture.weight_version[t - 1] &&
                         std::ranges::find(capture.token_offsets, static_cast<int64_t>(t)) ==
                             capture.token_offsets.end();
                }),
           "carry an older weight version than the token before them", findings);
}

}  // namespace

std::string_view DiscreteFaultName(DiscreteFault fault) {
  switch (fault) {
    case DiscreteFault::kTokensDiffer:
      return "tokens_differ";
    case DiscreteFault::kIdsOutside:
      return "ids_outside_vocabulary";
    case DiscreteFault::kRecordMissing:
      return "record_missing";
    case DiscreteFault::kRecordSynthetic:
      return "record_synthetic";
    case DiscreteFault::kVersionsFall:
      return "versions_fall";
    case DiscreteFault::kModelDiffers:
      return "model_differs";
    case DiscreteFault::kWeightsDiffer:
      return "weights_differ";
    case DiscreteFault::kWeightsUnproven:
      return "weights_unproven";
    case DiscreteFault::kSettings:
      break;
  }
  return "settings";
}

std::vector<GateFinding> CheckComparable(const Capture& capture, const ModelConfig& config) {
  std::vector<GateFinding> findings;
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

}  // namespace tandem::drift
