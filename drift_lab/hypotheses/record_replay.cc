#include "drift_lab/hypotheses/record_replay.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/lora/adapted_model.h"
#include "common/model/formats/plan_text.h"
#include "common/model/quantisation_plan.h"
#include "common/tensor/nearest_cast.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/faults/faulty_weights.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;
using rollout::ScoreOptions;
using rollout::ScoreSegment;

constexpr int64_t kInitialVersion = -1;
constexpr size_t kTensorsKept = 3, kHypothesesKept = 3;

// Servers that recompute, drain or abort at an install keep no KV of other weights.
bool ServersCarryKv(const Capture& capture, const std::set<int64_t>& versions) {
  const auto& servers = capture.manifest.servers;
  const bool keep = servers.empty() || servers.front().in_flight.empty() ||
                    servers.front().in_flight == rollout::InFlightName(rollout::InFlight::kKeep);
  return versions.size() > 1 && keep;
}

}  // namespace

std::vector<bool> HavingVersion(const Capture& capture, int64_t version) {
  std::vector<bool> wanted(static_cast<size_t>(capture.num_completions()));
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const auto begin = capture.weight_version.begin() + capture.begin_of(s);
    const auto end = capture.weight_version.begin() + capture.begin_of(s + 1);
    wanted[static_cast<size_t>(s)] = std::find(begin, end, version) != end;
  }
  return wanted;
}

RecordReplay::RecordReplay(const Capture& capture, const CaptureWeights& weights,
                           EngineForward& engine, std::string model)
    : capture_(capture),
      weights_(weights),
      engine_(engine),
      model_(std::move(model)),
      claims_(ClaimedTransforms(capture.manifest.sampling)),
      versions_(capture.weight_version.begin(), capture.weight_version.end()),
      carries_kv_(ServersCarryKv(capture, versions_)) {}

absl::StatusOr<EngineScores> RecordReplay::Score(const RecordHypothesis& hypothesis,
                                                 const std::vector<bool>& wanted,
                                                 const ReplayWay& way) {
  ScoreOptions options = hypothesis.Transforms(claims_);
  options.path = way.path;
  options.alone = way.alone;
  if (carries_kv_ && !way.own_version_only) return ScoreKept(hypothesis, wanted, options);
  return ScoreEach(hypothesis, wanted, options);
}

bool RecordReplay::Stale(const RecordHypothesis& hypothesis, int64_t completion) const {
  return hypothesis.stale_prefix > 0 && !hypothesis.stale_rows.empty() &&
         hypothesis.stale_rows[static_cast<size_t>(completion)];
}

absl::StatusOr<EngineScores> RecordReplay::ScoreKept(const RecordHypothesis& hypothesis,
                                                     const std::vector<bool>& wanted,
                                                     const ScoreOptions& options) {
  std::map<int64_t, const rollout::StagedWeights*> staged, stale;
  for (const int64_t version : versions_) {
    TANDEM_ASSIGN_OR_RETURN(staged[version],
                            Staged({version, hypothesis.weights, hypothesis.weight_formats}));
    if (hypothesis.stale_prefix == 0) continue;
    TANDEM_ASSIGN_OR_RETURN(
        stale[version], Staged({version - hypothesis.stale_prefix, {}, hypothesis.weight_formats}));
  }
  const auto segments = [&](int64_t s) {
    const auto begin = static_cast<size_t>(capture_.begin_of(s));
    const auto end = static_cast<size_t>(capture_.begin_of(s + 1));
    const auto prompt = std::ssize(capture_.prompt_of(s));
    std::vector<ScoreSegment> out;
    if (Stale(hypothesis, s) && prompt > 1) {
      out.push_back({prompt - 1, stale.at(capture_.weight_version[begin])});
    }
    for (size_t t = begin; t < end; ++t) {
      // A segment ends with the position that predicts the last token of a run of one version.
      if (t + 1 < end && capture_.weight_version[t + 1] == capture_.weight_version[t]) continue;
      out.push_back(
          {prompt + static_cast<int64_t>(t - begin), staged.at(capture_.weight_version[t])});
    }
    return out;
  };
  return engine_.Score(capture_, wanted, options, progress_,
                       {.first_id = hypothesis.first_id, .segments = segments});
}

absl::StatusOr<EngineScores> RecordReplay::ScoreEach(const RecordHypothesis& hypothesis,
                                                     const std::vector<bool>& wanted,
                                                     const ScoreOptions& options) {
  EngineScores scores(capture_.num_tokens());
  for (const int64_t version : versions_) {
    std::vector<bool> with_version = HavingVersion(capture_, version);
    for (size_t s = 0; s < wanted.size(); ++s) with_version[s] = with_version[s] && wanted[s];
    if (std::ranges::find(with_version, true) == with_version.end()) continue;
    const rollout::StagedWeights* staged = nullptr;
    const rollout::StagedWeights* stale = nullptr;
    TANDEM_ASSIGN_OR_RETURN(staged,
                            Staged({version, hypothesis.weights, hypothesis.weight_formats}));
    if (hypothesis.stale_prefix > 0) {
      TANDEM_ASSIGN_OR_RETURN(
          stale, Staged({version - hypothesis.stale_prefix, {}, hypothesis.weight_formats}));
    }
    const auto segments = [&](int64_t s) {
      const auto prompt = std::ssize(capture_.prompt_of(s)), length = std::ssize(capture_.ids(s));
      std::vector<ScoreSegment> out;
      if (Stale(hypothesis, s) && prompt > 1) out.push_back({prompt - 1, stale});
      out.push_back({prompt + length, staged});
      return out;
    };
    TANDEM_ASSIGN_OR_RETURN(const EngineScores scored,
                            engine_.Score(capture_, with_version, options, progress_,
                                          {.first_id = hypothesis.first_id, .segments = segments}));
    for (int64_t t = 0; t < capture_.num_tokens(); ++t) {
      if (capture_.weight_version[static_cast<size_t>(t)] == version) {
        scores.Take(scored, t, t + 1, t);
      }
    }
  }
  return scores;
}

std::vector<int64_t> RecordReplay::VersionsBefore() const {
  std::vector<int64_t> before;
  for (int64_t k = 1;; ++k) {
    for (const int64_t version : versions_) {
      if (!weights_.Carries(version - k)) return before;
    }
    before.push_back(k);
  }
}

std::vector<int64_t> RecordReplay::Sources() const {
  std::vector<int64_t> sources = VersionsBefore();
  // A run starts from the model directory, as version 0.
  const bool reached =
      versions_.size() == 1 && std::ranges::find(sources, *versions_.begin()) != sources.end();
  if (!reached) sources.push_back(OtherWeights::kInitial);
  return sources;
}

absl::StatusOr<std::vector<std::string>> RecordReplay::TensorsThatDiffer(int64_t versions_before) {
  const bool initial = versions_before == OtherWeights::kInitial;
  std::set<std::string> differ;
  std::vector<std::string> names;
  for (const int64_t version : versions_) {
    TANDEM_ASSIGN_OR_RETURN(const auto* const served, Tensors(version));
    const std::vector<HostTensor> claimed = *served;
    TANDEM_ASSIGN_OR_RETURN(const auto* const other,
                            Tensors(initial ? kInitialVersion : version - versions_before));
    for (size_t i = 0; i < claimed.size(); ++i) {
      if (!std::ranges::equal(claimed[i].bytes, (*other)[i].bytes))
        differ.insert(claimed[i].spec.name);
    }
    if (version != *versions_.rbegin()) continue;
    for (const HostTensor& tensor : claimed) {
      if (differ.contains(tensor.spec.name)) names.push_back(tensor.spec.name);
    }
  }
  return names;
}

absl::StatusOr<const std::vector<HostTensor>*> RecordReplay::Tensors(int64_t version) {
  const auto known = tensors_.find(version);
  if (known != tensors_.end()) return &known->second;
  std::vector<HostTensor> tensors;
  if (version == kInitialVersion) {
    TANDEM_ASSIGN_OR_RETURN(tensors, ReadAdaptedTensors(model_));
    TANDEM_ASSIGN_OR_RETURN(tensors, MatchModelTensors(engine_.config(), std::move(tensors)));
    for (HostTensor& tensor : tensors) {
      TANDEM_ASSIGN_OR_RETURN(tensor, CastNearest(tensor, engine_.weight_dtype()));
    }
  } else {
    TANDEM_ASSIGN_OR_RETURN(tensors, weights_.Served(version, engine_.weight_dtype()));
  }
  if (tensors_.size() >= kTensorsKept) tensors_.erase(tensors_.begin());
  return &(tensors_[version] = std::move(tensors));
}

absl::StatusOr<std::vector<HostTensor>> RecordReplay::Mix(int64_t version,
                                                          const OtherWeights& other) {
  const bool initial = other.versions_before == OtherWeights::kInitial;
  TANDEM_ASSIGN_OR_RETURN(const auto* const claimed, Tensors(version));
  std::vector<HostTensor> mixed = *claimed;
  TANDEM_ASSIGN_OR_RETURN(const auto* const from,
                          Tensors(initial ? kInitialVersion : version - other.versions_before));
  for (size_t i = 0; i < mixed.size(); ++i) {
    if (!other.tensors.empty() && !std::ranges::binary_search(other.tensors, mixed[i].spec.name))
      continue;
    mixed[i] =
        other.amount == 1 ? (*from)[i] : rollout::BlendTensors(mixed[i], (*from)[i], other.amount);
  }
  return mixed;
}

bool RecordReplay::ServesQuantised() const {
  const auto& servers = capture_.manifest.servers;
  const absl::StatusOr<QuantisationOptions> served =
      OptionsOfPlan(servers.empty() ? "" : servers.front().weights);
  const bool weights = served.ok() && served->weights != WeightScheme::kWide;
  return weights || (served.ok() && !served->by_layer.empty());
}

absl::StatusOr<std::unique_ptr<rollout::StagedWeights>> RecordReplay::Stage(const Key& key) {
  if (key.claimed() && engine_.unmerged()) {
    TANDEM_ASSIGN_OR_RETURN(const rollout::AdapterFactors adapter, weights_.Adapter(key.version));
    return engine_.StageAdapter(adapter);
  }
  std::vector<HostTensor> tensors;
  if (key.other) {
    TANDEM_ASSIGN_OR_RETURN(tensors, Mix(key.version, *key.other));
  } else {
    TANDEM_ASSIGN_OR_RETURN(const auto* const served, Tensors(key.version));
    tensors = *served;
  }
  if (key.formats.empty()) return engine_.Stage(std::move(tensors));
  TANDEM_ASSIGN_OR_RETURN(const QuantisationOptions options, OptionsOfPlan(key.formats));
  TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan, MakeQuantisationPlan(config(), options));
  return engine_.StageAs(tensors, plan);
}

absl::StatusOr<const rollout::StagedWeights*> RecordReplay::Staged(const Key& key) {
  const auto known = staged_.find(key);
  if (known != staged_.end()) return known->second.get();
  TANDEM_ASSIGN_OR_RETURN(auto staged, Stage(key));
  // Claimed weights are kept. One pass needs a hypothesis's weights for every version at once, so
  // as many of them are kept.
  const auto is_hypothesis = [](const auto& kept) { return !kept.first.claimed(); };
  if (static_cast<size_t>(std::ranges::count_if(staged_, is_hypothesis)) >=
      std::max(kHypothesesKept, versions_.size())) {
    std::erase_if(staged_, [&](const auto& kept) {
      return is_hypothesis(kept) &&
             (kept.first.other != key.other || kept.first.formats != key.formats);
    });
  }
  return (staged_[key] = std::move(staged)).get();
}

}  // namespace tandem::drift
