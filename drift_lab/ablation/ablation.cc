#include "drift_lab/ablation/ablation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/formats/plan_text.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/tensor/instruction_set.h"
#include "drift_lab/hypotheses/record_replay.h"
#include "drift_lab/recompute/trainer_forward.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;
using rollout::ScoreOptions;
using rollout::ScorePath;
using rollout::SitePrecision;

constexpr float kUnscored = std::numeric_limits<float>::quiet_NaN();
constexpr int kBf16Bits = 8;
// Completions also decoded alone, to see the batch composition's effect.
constexpr int64_t kNumAlone = 8;

// Reports progress as a fraction of the whole work, in which each pass has its cost per token as
// weight.
class Passes {
 public:
  Passes(int64_t num_tokens, double total, const PassProgress& progress)
      : num_tokens_(static_cast<double>(num_tokens)), total_(total), progress_(progress) {}

  void Start(std::string what, double cost) {
    done_ += cost_;
    cost_ = cost;
    what_ = std::move(what);
    Report(0);
  }
  void Report(int64_t tokens) const {
    progress_(what_,
              std::min(1.0, (done_ + cost_ * static_cast<double>(tokens) / num_tokens_) / total_));
  }

 private:
  const double num_tokens_, total_;
  const PassProgress& progress_;
  std::string what_;
  double done_ = 0, cost_ = 0;
};

// Costs of the passes, relative to an engine prefill. Only the progress display depends on them.
constexpr double kPrefillCost = 1, kDecodeCost = 2, kAloneCost = 1.5, kTrainerCost = 2,
                 kDiagnosisCost = 6;
constexpr int64_t kUsualTries = 40;

// Copies the values at the tokens of `version` from `from` to `to`.
void TakeVersion(const Capture& capture, int64_t version, const std::vector<float>& from,
                 std::vector<float>& to) {
  for (size_t t = 0; t < to.size(); ++t) {
    if (capture.weight_version[t] == version) to[t] = from[t];
  }
}

// A random sample of `count` of the completions, [S]; all of them if there are fewer.
std::vector<bool> SampleOf(int64_t num_completions, int64_t count, uint64_t seed) {
  std::vector<bool> wanted(static_cast<size_t>(num_completions), true);
  std::vector<size_t> places(wanted.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::mt19937_64 random(seed);
  for (size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random() % i]);
  for (size_t i = static_cast<size_t>(count); i < places.size(); ++i) wanted[places[i]] = false;
  return wanted;
}

// The precision of one side, as far as the fp32 engine can emulate it.
struct Side {
  bool bf16_weights = false;
  int body_bits = 24, kv_bits = 24;
};

Side EngineSide(const offpolicy::CaptureManifest& manifest) {
  const bool bf16 = !manifest.servers.empty() && manifest.servers.front().dtype == "bf16";
  return bf16 ? Side{true, kBf16Bits, kBf16Bits} : Side{};
}

// With exact numerics the trainer computes as the engine does; otherwise its attention is fp32.
Side TrainerSide(const offpolicy::CaptureManifest& manifest) {
  if (manifest.trainer.numerics == NumericsName(Numerics::kExact)) return EngineSide(manifest);
  return manifest.trainer.dtype == "bf16" ? Side{true, kBf16Bits, 24} : Side{};
}

// The formats that the servers name. (They are equal: the trainer takes no others.)
std::string ServedFormats(const offpolicy::CaptureManifest& manifest) {
  return manifest.servers.empty() ? "" : manifest.servers.front().weights;
}

bool ServesUnmerged(const offpolicy::CaptureManifest& manifest) {
  return !manifest.servers.empty() && manifest.servers.front().lora == "unmerged";
}

bool TrainerImitates(const offpolicy::CaptureManifest& manifest) {
  const std::string& weights = manifest.trainer.weights;
  return !weights.empty() && weights != "dtype";
}

std::vector<Part> FactorsOf(const offpolicy::CaptureManifest& manifest, bool full) {
  if (TrainerImitates(manifest)) return {};
  if (manifest.trainer.numerics == NumericsName(Numerics::kExact)) return {};
  const Side engine = EngineSide(manifest), trainer = TrainerSide(manifest);
  std::vector<Part> factors;
  if (engine.bf16_weights || trainer.bf16_weights) factors.push_back(Part::kCast);
  if (engine.body_bits != trainer.body_bits) factors.push_back(Part::kBody);
  if (engine.kv_bits != trainer.kv_bits) factors.push_back(Part::kKv);
  if (full && !factors.empty() && factors.front() == Part::kCast) factors.push_back(Part::kHead);
  return factors;
}

class AblationRun {
 public:
  AblationRun(const Capture& capture, const CaptureWeights& weights,
              const AttributionOptions& options, const PassProgress& progress)
      : capture_(capture),
        weights_(weights),
        options_(options),
        row_tokens_(PackedRowTokens(capture)),
        claims_(ClaimedTransforms(capture.manifest.sampling)),
        engine_side_(EngineSide(capture.manifest)),
        trainer_side_(TrainerSide(capture.manifest)),
        versions_(capture.weight_version.begin(), capture.weight_version.end()),
        passes_(capture.num_tokens(), TotalCost(), progress) {}

  absl::StatusOr<Ablation> Run() {
    const auto tokens = static_cast<size_t>(capture_.num_tokens());
    ablation_.record = capture_.behaviour_logprobs;
    ablation_.factors = FactorsOf(capture_.manifest, options_.full);
    ablation_.cells.assign(size_t{1} << ablation_.factors.size(),
                           std::vector<float>(tokens, kUnscored));
    for (auto* column :
         {&ablation_.trainer_cast, &ablation_.trainer_alone, &ablation_.trainer_packed}) {
      column->assign(tokens, kUnscored);
    }
    const int64_t longest = LongestSequence(capture_);
    const ComputeDType dtype =
        engine_side_.bf16_weights ? ComputeDType::kBf16 : ComputeDType::kFp32;
    TANDEM_ASSIGN_OR_RETURN(const QuantisationOptions formats,
                            OptionsOfPlan(ServedFormats(capture_.manifest)));
    EngineForwardOptions serving = {.dtype = dtype,
                                    .longest = longest,
                                    .num_threads = options_.num_threads,
                                    .quantised = formats,
                                    .unmerged = ServesUnmerged(capture_.manifest)};
    TANDEM_ASSIGN_OR_RETURN(serving_, EngineForward::Create(options_.model, serving));
    TANDEM_ASSIGN_OR_RETURN(
        wide_, EngineForward::Create(options_.model,
                                     {.longest = longest, .num_threads = options_.num_threads}));
    replay_ = std::make_unique<RecordReplay>(capture_, weights_, *serving_, options_.model);
    replay_->OnProgress([this](int64_t tokens) { passes_.Report(tokens); });
    TANDEM_RETURN_IF_ERROR(ScoreServing());
    TANDEM_RETURN_IF_ERROR(Diagnose());
    replay_.reset();
    TANDEM_RETURN_IF_ERROR(ScoreMerged(serving));
    TANDEM_RETURN_IF_ERROR(ScoreUnquantised(serving));
    for (const int64_t version : versions_) {
      TANDEM_RETURN_IF_ERROR(ScoreCells(version));
      TANDEM_RETURN_IF_ERROR(ScoreTrainer(version));
    }
    TANDEM_RETURN_IF_ERROR(ScoreNow());
    return std::move(ablation_);
  }

 private:
  double TotalCost() const {
    const double cells =
        std::pow(2.0, static_cast<double>(FactorsOf(capture_.manifest, options_.full).size()));
    return static_cast<double>(versions_.size()) * (cells * kPrefillCost + 3 * kTrainerCost) +
           kDecodeCost + kAloneCost + 2 * kPrefillCost + kDiagnosisCost + kTrainerCost;
  }

  // Steps 1 to 3: the engine, as it served.
  absl::Status ScoreServing() {
    passes_.Start("engine, decode replay", kDecodeCost);
    TANDEM_ASSIGN_OR_RETURN(ablation_.replay, replay_->Score({}, {}, {.path = ScorePath::kDecode}));
    passes_.Start("engine, decode alone", kAloneCost);
    const std::vector<bool> sample = SampleOf(capture_.num_completions(), kNumAlone, options_.seed);
    TANDEM_ASSIGN_OR_RETURN(
        EngineScores alone,
        replay_->Score({}, sample, {.path = ScorePath::kDecode, .alone = true}));
    ablation_.alone = std::move(alone.logprobs);
    passes_.Start("engine, prefill", kPrefillCost);
    TANDEM_ASSIGN_OR_RETURN(EngineScores prefill, replay_->Score({}, {}, {}));
    ablation_.prefill = std::move(prefill.logprobs);
    ablation_.own_version = ablation_.prefill;
    ablation_.carries_kv = replay_->CarriesKv();
    if (!ablation_.carries_kv) return absl::OkStatus();
    passes_.Start("engine, KV of the own version", kPrefillCost);
    TANDEM_ASSIGN_OR_RETURN(EngineScores own, replay_->Score({}, {}, {.own_version_only = true}));
    ablation_.own_version = std::move(own.logprobs);
    return absl::OkStatus();
  }

  // The serving engine with adapters merged into its weights.
  absl::Status ScoreMerged(EngineForwardOptions& serving) {
    ablation_.merged = ablation_.own_version;
    ablation_.unmerged = std::exchange(serving.unmerged, false);
    if (!ablation_.unmerged) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(ablation_.merged, ScoreAs("engine, adapters merged", serving));
    return absl::OkStatus();
  }

  // That engine in its dtype.
  absl::Status ScoreUnquantised(EngineForwardOptions& serving) {
    ablation_.unquantised = ablation_.merged;
    const QuantisationOptions formats = std::exchange(serving.quantised, {});
    ablation_.quantises = formats != QuantisationOptions() && !TrainerImitates(capture_.manifest);
    if (!ablation_.quantises) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(ablation_.unquantised, ScoreAs("engine, not quantised", serving));
    return absl::OkStatus();
  }

  // The log-probs of another serving engine, each token under its own version. It stays the serving
  // engine.
  absl::StatusOr<std::vector<float>> ScoreAs(const std::string& what,
                                             const EngineForwardOptions& engine) {
    passes_.Start(what, kPrefillCost);
    serving_.reset();  // its memory is that of the next
    TANDEM_ASSIGN_OR_RETURN(serving_, EngineForward::Create(options_.model, engine));
    RecordReplay replay(capture_, weights_, *serving_, options_.model);
    replay.OnProgress([this](int64_t tokens) { passes_.Report(tokens); });
    TANDEM_ASSIGN_OR_RETURN(EngineScores scores, replay.Score({}, {}, {.own_version_only = true}));
    return std::move(scores.logprobs);
  }

  // The causes of the difference between the record and step 1.
  absl::Status Diagnose() {
    passes_.Start("diagnosis of the record", kDiagnosisCost);
    replay_->OnProgress([](int64_t) {});
    const ScorePath path =
        ablation_.prefill == ablation_.replay.logprobs ? ScorePath::kPrefill : ScorePath::kDecode;
    const auto& servers = capture_.manifest.servers;
    const bool same_arithmetic = servers.empty() || servers.front().instruction_set ==
                                                        InstructionSetName(ActiveInstructionSet());
    TANDEM_ASSIGN_OR_RETURN(
        ablation_.diagnosis,
        DiagnoseRecord(capture_, *replay_, ablation_.replay, path,
                       {.seed = options_.seed,
                        .bootstrap_replicates = options_.bootstrap_replicates,
                        .same_arithmetic = same_arithmetic},
                       [this](int64_t tries) {
                         const double done =
                             static_cast<double>(tries) / static_cast<double>(tries + kUsualTries);
                         passes_.Report(static_cast<int64_t>(
                             done * static_cast<double>(capture_.num_tokens())));
                       }));
    if (!ablation_.diagnosis.before.exact()) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(ablation_.sampler,
                            DiagnoseSampler(capture_, *replay_, ablation_.replay, path));
    return absl::OkStatus();
  }

  // Scores all combinations of the factors, in the fp32 engine.
  absl::Status ScoreCells(int64_t version) {
    if (ablation_.factors.empty()) {
      TakeVersion(capture_, version, ablation_.unquantised, ablation_.cells[0]);
      return absl::OkStatus();
    }
    const auto bit_of = [&](Part part) -> size_t {
      const auto found = std::ranges::find(ablation_.factors, part);
      return found == ablation_.factors.end() ? 0
                                              : size_t{1} << (found - ablation_.factors.begin());
    };
    const std::vector<bool> wanted = HavingVersion(capture_, version);
    TANDEM_ASSIGN_OR_RETURN(auto engines, weights_.Served(version, serving_->weight_dtype()));
    TANDEM_ASSIGN_OR_RETURN(const auto trainers, trainer_side_.bf16_weights
                                                     ? weights_.Bf16TrainerValues(version)
                                                     : weights_.Masters(version));
    engines = WidenToFp32(engines);
    // Cells with the same weights are neighbours, because installing weights costs as much as
    // scoring a few completions.
    const size_t weight_bits = bit_of(Part::kCast) | bit_of(Part::kHead);
    std::vector<size_t> order(ablation_.cells.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t cell) { return cell & weight_bits; });
    size_t installed = ~size_t{0};
    for (const size_t cell : order) {
      if (installed != (cell & weight_bits)) {
        installed = cell & weight_bits;
        const bool cast = cell & bit_of(Part::kCast);
        const bool head = bit_of(Part::kHead) != 0 ? (cell & bit_of(Part::kHead)) != 0 : cast;
        TANDEM_RETURN_IF_ERROR(wide_->Install(Mix(engines, trainers, cast, head)));
      }
      ScoreOptions options = claims_;
      SitePrecision& precision = options.arithmetic.precision;
      precision.body_bits =
          cell & bit_of(Part::kBody) ? engine_side_.body_bits : trainer_side_.body_bits;
      precision.kv_bits = cell & bit_of(Part::kKv) ? engine_side_.kv_bits : trainer_side_.kv_bits;
      passes_.Start(absl::StrCat("cell ", cell + 1, " of ", ablation_.cells.size()), kPrefillCost);
      TANDEM_ASSIGN_OR_RETURN(const EngineScores scores,
                              wide_->Score(capture_, wanted, options,
                                           [this](int64_t tokens) { passes_.Report(tokens); }));
      TakeVersion(capture_, version, scores.logprobs, ablation_.cells[cell]);
    }
    return absl::OkStatus();
  }

  // Takes the layers from the engine's or the trainer's weights, and the head's matrix likewise.
  std::vector<HostTensor> Mix(const std::vector<HostTensor>& engines,
                              const std::vector<HostTensor>& trainers, bool engine_layers,
                              bool engine_head) const {
    const char* const head =
        serving_->config().tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    std::vector<HostTensor> mixed;
    for (size_t i = 0; i < engines.size(); ++i) {
      const bool engine = engines[i].spec.name == head ? engine_head : engine_layers;
      mixed.push_back(engine ? engines[i] : trainers[i]);
    }
    return mixed;
  }

  // Steps 5 to 7: the trainer, at the weights as served and at its masters.
  absl::Status ScoreTrainer(int64_t version) {
    const std::vector<bool> wanted = HavingVersion(capture_, version);
    TANDEM_ASSIGN_OR_RETURN(const auto masters, weights_.Masters(version));
    TANDEM_ASSIGN_OR_RETURN(const auto served, weights_.Served(version, serving_->weight_dtype()));
    TANDEM_ASSIGN_OR_RETURN(const auto cast,
                            TrainerScore(served, wanted, row_tokens_, "trainer, as served"));
    TakeVersion(capture_, version, cast, ablation_.trainer_cast);
    TANDEM_ASSIGN_OR_RETURN(const auto alone, TrainerScore(masters, wanted, 0, "trainer, alone"));
    TakeVersion(capture_, version, alone, ablation_.trainer_alone);
    TANDEM_ASSIGN_OR_RETURN(const auto packed,
                            TrainerScore(masters, wanted, row_tokens_, "trainer, packed"));
    TakeVersion(capture_, version, packed, ablation_.trainer_packed);
    return absl::OkStatus();
  }

  // Step 8: the trainer at the weights of the step, and the log-probs that it recorded.
  absl::Status ScoreNow() {
    const int64_t now = capture_.manifest.proximal_version;
    if (versions_.size() == 1 && *versions_.begin() == now) {
      ablation_.trainer_now = ablation_.trainer_packed;
    } else {
      TANDEM_ASSIGN_OR_RETURN(const auto masters, weights_.Masters(now));
      TANDEM_ASSIGN_OR_RETURN(ablation_.trainer_now,
                              TrainerScore(masters, {}, row_tokens_, "trainer, now"));
    }
    ablation_.proximal_recorded =
        std::ranges::any_of(capture_.proximal_logprobs, [](float x) { return std::isfinite(x); });
    ablation_.proximal =
        ablation_.proximal_recorded ? capture_.proximal_logprobs : ablation_.trainer_now;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> TrainerScore(const std::vector<HostTensor>& tensors,
                                                  const std::vector<bool>& wanted,
                                                  int64_t row_tokens, const std::string& what) {
    passes_.Start(what, kTrainerCost);
    TANDEM_ASSIGN_OR_RETURN(
        const auto forward,
        TrainerForward::Create(serving_->config(), tensors, RecordedTrainer(capture_, row_tokens)));
    return forward->Score(capture_, wanted, [this](int64_t tokens) { passes_.Report(tokens); });
  }

  const Capture& capture_;
  const CaptureWeights& weights_;
  const AttributionOptions& options_;
  const int64_t row_tokens_;
  const ScoreOptions claims_;
  const Side engine_side_, trainer_side_;
  const std::set<int64_t> versions_;
  Passes passes_;
  std::unique_ptr<EngineForward> serving_, wide_;  // in the servers' dtype, and in fp32
  std::unique_ptr<RecordReplay> replay_;           // with serving_
  Ablation ablation_;
};

}  // namespace

absl::StatusOr<Ablation> RunAblation(const Capture& capture, const CaptureWeights& weights,
                                     const AttributionOptions& options,
                                     const PassProgress& progress) {
  return AblationRun(capture, weights, options, progress).Run();
}

}  // namespace tandem::drift
