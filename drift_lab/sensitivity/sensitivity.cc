#include "drift_lab/sensitivity/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/formats/plan_text.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/engine/forward/model_weights.h"

namespace tandem::drift {
namespace {

using rollout::ScoreSequence;

// One version's log-probs of the batch's sampled tokens, sequence after sequence.
using BatchLogprobs = std::vector<std::vector<float>>;

// The format of a place in a plan. Places are counted layer by layer in the order of Site; the last
// is the head.
::tandem::WeightFormat& FormatAt(QuantisationPlan& plan, size_t place) {
  const size_t layer = place / kNumSites;
  return layer < plan.layers.size() ? plan.layers[layer].sites[place % kNumSites] : plan.head;
}

std::string PlaceName(const QuantisationPlan& plan, size_t place) {
  const size_t layer = place / kNumSites;
  if (layer >= plan.layers.size()) return "head";
  return absl::StrCat(layer, ".", std::string(kSiteNames[place % kNumSites]));
}

// The plan with nothing quantised, and the same activations and KV.
QuantisationPlan WideLike(QuantisationPlan plan) {
  for (size_t place = 0; place <= plan.layers.size() * kNumSites; ++place) {
    FormatAt(plan, place) = ::tandem::WeightFormat();
  }
  return plan;
}

QuantisationCost CostOf(const BatchLogprobs& wide, const BatchLogprobs& quantised) {
  offpolicy::ClusterSums sums{.num_sums = 3, .values = {}};
  for (size_t s = 0; s < wide.size(); ++s) {
    double row[3] = {};
    for (size_t t = 0; t < wide[s].size(); ++t) {
      const double log_w = static_cast<double>(wide[s][t]) - quantised[s][t];
      row[0] += std::expm1(log_w) - log_w;
      row[1] += std::abs(log_w);
      row[2] += 1;
    }
    sums.Add(row);
  }
  const offpolicy::Statistic statistics[] = {offpolicy::RatioOfSums(0, 2),
                                             offpolicy::RatioOfSums(1, 2)};
  const std::vector<offpolicy::Interval> intervals =
      offpolicy::BootstrapIntervals(sums, statistics);
  return {intervals[0], intervals[1]};
}

// The engine with the batch, and its log-probs under any plan.
class Subject {
 public:
  Subject(std::unique_ptr<rollout::Engine> engine, const std::vector<ScoreSequence>& batch,
          float temperature)
      : engine_(std::move(engine)), batch_(batch) {
    how_.temperature = temperature;
  }

  absl::StatusOr<BatchLogprobs> Score(const QuantisationPlan& plan) {
    TANDEM_ASSIGN_OR_RETURN(const auto staged, engine_->StageAs(engine_->initial_tensors(), plan));
    std::vector<ScoreSequence> sequences = batch_;
    for (ScoreSequence& one : sequences) one.segments = {{std::ssize(one.ids), staged.get()}};
    TANDEM_ASSIGN_OR_RETURN(const std::vector<rollout::SequenceScore> scores,
                            engine_->Score(sequences, how_));
    BatchLogprobs logprobs;
    for (size_t s = 0; s < scores.size(); ++s) {
      const int64_t first = std::max<int64_t>(1, batch_[s].num_prompt_tokens);
      logprobs.emplace_back(scores[s].logprobs.begin() + first, scores[s].logprobs.end());
    }
    return logprobs;
  }

  const rollout::Engine& engine() const { return *engine_; }

 private:
  const std::unique_ptr<rollout::Engine> engine_;
  const std::vector<ScoreSequence>& batch_;
  rollout::ScoreOptions how_;
};

absl::StatusOr<std::unique_ptr<rollout::Engine>> MakeEngine(
    const SensitivityOptions& options, const std::vector<ScoreSequence>& batch) {
  constexpr int64_t kTogether = 16, kSlack = 32;  // sequences; tokens of a last block
  int64_t longest = 0;
  for (const ScoreSequence& one : batch) longest = std::max(longest, std::ssize(one.ids));
  rollout::EngineOptions engine;
  engine.dtype = options.dtype;
  engine.quantised = options.quantised;
  engine.num_threads = options.num_threads;
  engine.kv_capacity_tokens = kTogether * (longest + kSlack);
  engine.prefix_cache = false;
  return rollout::Engine::Create(options.model, engine);
}

}  // namespace

absl::StatusOr<Sensitivity> MeasureSensitivity(const SensitivityOptions& options,
                                               const std::vector<ScoreSequence>& batch,
                                               SensitivityProgress progress) {
  if (batch.empty()) return InvalidArgument("no sequences to measure with");
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rollout::Engine> engine, MakeEngine(options, batch));
  const ModelConfig config = engine->config();
  const DType dtype = engine->weight_dtype();
  TANDEM_ASSIGN_OR_RETURN(QuantisationPlan whole, MakeQuantisationPlan(config, options.quantised));
  if (!whole.quantises()) {
    return InvalidArgument("nothing is quantised: name a number format (--weight-format)");
  }
  const QuantisationPlan wide = WideLike(whole);
  Sensitivity result = {.num_layers = config.num_layers,
                        .num_sequences = std::ssize(batch),
                        .plan_text = PlanText(whole),
                        .wide_bytes = rollout::PackedModelBytes(config, dtype, wide),
                        .whole_bytes = rollout::PackedModelBytes(config, dtype, whole)};
  std::vector<size_t> quantised;  // the places that the whole quantises
  const size_t num_places = whole.layers.size() * kNumSites + 1;
  for (size_t place = 0; place < num_places; ++place) {
    if (FormatAt(whole, place).scheme != WeightScheme::kWide) quantised.push_back(place);
  }
  Subject subject(std::move(engine), batch, options.temperature);
  const int64_t total = std::ssize(quantised) + 2;
  int64_t done = 0;
  progress(done, total, "nothing quantised");
  TANDEM_ASSIGN_OR_RETURN(const BatchLogprobs reference, subject.Score(wide));
  for (const std::vector<float>& one : reference) result.num_tokens += std::ssize(one);
  // The cost with these of `quantised` and no others.
  const auto with = [&](const std::vector<size_t>& chosen) -> absl::StatusOr<QuantisationCost> {
    QuantisationPlan plan = wide;
    for (const size_t i : chosen) {
      FormatAt(plan, quantised[i]) = FormatAt(whole, quantised[i]);
    }
    TANDEM_ASSIGN_OR_RETURN(const BatchLogprobs scores, subject.Score(plan));
    return CostOf(reference, scores);
  };
  std::vector<PlaceCost> costs;
  for (size_t i = 0; i < quantised.size(); ++i) {
    PlaceSensitivity place = {PlaceName(whole, quantised[i]), FormatAt(whole, quantised[i])};
    progress(++done, total, place.place);
    TANDEM_ASSIGN_OR_RETURN(place.cost, with({i}));
    QuantisationPlan alone = wide;
    FormatAt(alone, quantised[i]) = place.format;
    place.saved_bytes = result.wide_bytes - rollout::PackedModelBytes(config, dtype, alone);
    costs.push_back({place.place, place.cost.k3.value, place.saved_bytes});
    result.places.push_back(std::move(place));
  }
  progress(++done, total, "everything");
  TANDEM_ASSIGN_OR_RETURN(const BatchLogprobs scores, subject.Score(whole));
  result.whole = CostOf(reference, scores);
  if (!options.budget) return result;
  int64_t measured = 0;
  TANDEM_ASSIGN_OR_RETURN(
      result.plan,
      ChooseMixedPlan(costs, *options.budget,
                      [&](const std::vector<size_t>& chosen) -> absl::StatusOr<double> {
                        progress(total, total, absl::StrCat("mixed plan, try ", ++measured));
                        TANDEM_ASSIGN_OR_RETURN(const QuantisationCost cost, with(chosen));
                        return cost.k3.value;
                      }));
  return result;
}

}  // namespace tandem::drift
