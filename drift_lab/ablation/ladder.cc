#include "drift_lab/ablation/ladder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/numerics.h"
#include "common/tensor/instruction_set.h"
#include "drift_lab/ablation/shapley.h"
#include "drift_lab/hypotheses/record_replay.h"
#include "drift_lab/recompute/trainer_forward.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;
using rollout::ScoreOptions;
using rollout::ScorePath;
using rollout::SitePrecision;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kBf16Bits = 8;

// Fractions of the whole work, for progress: a pass each, weighed by what it costs per token.
class Passes {
 public:
  Passes(int64_t num_tokens, double total, const LadderProgress& progress)
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
  const LadderProgress& progress_;
  std::string what_;
  double done_ = 0, cost_ = 0;
};

// Costs of a pass against an engine prefill; only progress depends on them.
constexpr double kPrefillCost = 1, kDecodeCost = 2, kAloneCost = 1.5, kTrainerCost = 2,
                 kDiagnosisCost = 6;
constexpr int64_t kUsualTries = 40;

// Copies the tokens of `version` from `from`.
void TakeVersion(const Capture& capture, int64_t version, const std::vector<float>& from,
                 std::vector<float>& to) {
  for (size_t t = 0; t < to.size(); ++t) {
    if (capture.weight_version[t] == version) to[t] = from[t];
  }
}

std::vector<bool> SampleOf(std::vector<bool> wanted, int64_t count, uint64_t seed) {
  std::vector<size_t> places;
  for (size_t s = 0; s < wanted.size(); ++s) {
    if (wanted[s]) places.push_back(s);
  }
  std::mt19937_64 random(seed);
  for (size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random() % i]);
  for (size_t i = static_cast<size_t>(count); i < places.size(); ++i) wanted[places[i]] = false;
  return wanted;
}

// How a side computes, as far as the fp32 engine can take its place.
struct Side {
  bool bf16_weights = false;
  int body_bits = 24, kv_bits = 24;
};

Side EngineSide(const offpolicy::CaptureManifest& manifest) {
  const bool bf16 = !manifest.servers.empty() && manifest.servers.front().dtype == "bf16";
  return bf16 ? Side{true, kBf16Bits, kBf16Bits} : Side{};
}

// In exact numerics the trainer computes as the engine does; else its attention is fp32.
Side TrainerSide(const offpolicy::CaptureManifest& manifest) {
  if (manifest.trainer.numerics == NumericsName(Numerics::kExact)) return EngineSide(manifest);
  return manifest.trainer.dtype == "bf16" ? Side{true, kBf16Bits, 24} : Side{};
}

std::vector<Part> FactorsOf(const offpolicy::CaptureManifest& manifest, bool full) {
  if (manifest.trainer.numerics == NumericsName(Numerics::kExact)) return {};
  const Side engine = EngineSide(manifest), trainer = TrainerSide(manifest);
  std::vector<Part> factors;
  if (engine.bf16_weights || trainer.bf16_weights) factors.push_back(Part::kCast);
  if (engine.body_bits != trainer.body_bits) factors.push_back(Part::kBody);
  if (engine.kv_bits != trainer.kv_bits) factors.push_back(Part::kKv);
  if (full && !factors.empty() && factors.front() == Part::kCast) factors.push_back(Part::kHead);
  return factors;
}

class Climb {
 public:
  Climb(const Capture& capture, const CaptureWeights& weights, const LadderOptions& options,
        const LadderProgress& progress)
      : capture_(capture),
        weights_(weights),
        options_(options),
        claims_(ClaimedTransforms(capture.manifest.sampling)),
        engine_side_(EngineSide(capture.manifest)),
        trainer_side_(TrainerSide(capture.manifest)),
        versions_(capture.weight_version.begin(), capture.weight_version.end()),
        passes_(capture.num_tokens(), TotalCost(), progress) {}

  absl::StatusOr<Ladder> Run();

 private:
  double TotalCost() const;
  absl::Status ScoreServing();
  absl::Status Diagnose();
  absl::Status ScoreCells(int64_t version);
  std::vector<HostTensor> Mix(const std::vector<HostTensor>& engines,
                              const std::vector<HostTensor>& trainers, bool engine_layers,
                              bool engine_head) const;
  absl::Status ScoreTrainer(int64_t version);
  absl::Status ScoreNow();
  absl::StatusOr<std::vector<float>> EngineScore(EngineForward& engine,
                                                 const std::vector<bool>& wanted,
                                                 const ScoreOptions& options,
                                                 EngineScores* all = nullptr);
  absl::StatusOr<std::vector<float>> TrainerScore(const std::vector<HostTensor>& tensors,
                                                  const std::vector<bool>& wanted,
                                                  int64_t row_tokens, const std::string& what);

  const Capture& capture_;
  const CaptureWeights& weights_;
  const LadderOptions& options_;
  const ScoreOptions claims_;
  const Side engine_side_, trainer_side_;
  const std::set<int64_t> versions_;
  Passes passes_;
  std::unique_ptr<EngineForward> serving_, wide_;  // in the servers' dtype, and in fp32
  std::unique_ptr<RecordReplay> replay_;           // with serving_
  Ladder ladder_;
};

double Climb::TotalCost() const {
  const double cells =
      std::pow(2.0, static_cast<double>(FactorsOf(capture_.manifest, options_.full).size()));
  return static_cast<double>(versions_.size()) * (cells * kPrefillCost + 3 * kTrainerCost) +
         kDecodeCost + kAloneCost + 2 * kPrefillCost + kDiagnosisCost + kTrainerCost;
}

absl::StatusOr<std::vector<float>> Climb::EngineScore(EngineForward& engine,
                                                      const std::vector<bool>& wanted,
                                                      const ScoreOptions& options,
                                                      EngineScores* all) {
  TANDEM_ASSIGN_OR_RETURN(
      EngineScores scores,
      engine.Score(capture_, wanted, options, [this](int64_t tokens) { passes_.Report(tokens); }));
  std::vector<float> logprobs = scores.logprobs;
  if (all != nullptr) *all = std::move(scores);
  return logprobs;
}

// Rungs 1 to 3: the engine as it served.
absl::Status Climb::ScoreServing() {
  passes_.Start("engine, decode replay", kDecodeCost);
  TANDEM_ASSIGN_OR_RETURN(ladder_.replay, replay_->Score({}, {}, {.path = ScorePath::kDecode}));
  passes_.Start("engine, decode alone", kAloneCost);
  const std::vector<bool> all(static_cast<size_t>(capture_.num_completions()), true);
  TANDEM_ASSIGN_OR_RETURN(EngineScores alone,
                          replay_->Score({}, SampleOf(all, options_.num_alone, options_.seed),
                                         {.path = ScorePath::kDecode, .alone = true}));
  ladder_.alone = std::move(alone.logprobs);
  passes_.Start("engine, prefill", kPrefillCost);
  TANDEM_ASSIGN_OR_RETURN(EngineScores prefill, replay_->Score({}, {}, {}));
  ladder_.prefill = std::move(prefill.logprobs);
  ladder_.own_version = ladder_.prefill;
  ladder_.carries_kv = replay_->CarriesKv();
  if (!ladder_.carries_kv) return absl::OkStatus();
  passes_.Start("engine, KV of the own version", kPrefillCost);
  TANDEM_ASSIGN_OR_RETURN(EngineScores own, replay_->Score({}, {}, {.own_version_only = true}));
  ladder_.own_version = std::move(own.logprobs);
  return absl::OkStatus();
}

// What is between the record and rung 1.
absl::Status Climb::Diagnose() {
  passes_.Start("diagnosis of the record", kDiagnosisCost);
  replay_->OnProgress([](int64_t) {});
  const ScorePath path =
      ladder_.prefill == ladder_.replay.logprobs ? ScorePath::kPrefill : ScorePath::kDecode;
  const auto& servers = capture_.manifest.servers;
  const bool same_arithmetic = servers.empty() || servers.front().instruction_set ==
                                                      InstructionSetName(ActiveInstructionSet());
  TANDEM_ASSIGN_OR_RETURN(
      ladder_.diagnosis,
      DiagnoseRecord(capture_, *replay_, ladder_.replay, path,
                     {.seed = options_.seed,
                      .bootstrap_replicates = options_.bootstrap_replicates,
                      .same_arithmetic = same_arithmetic},
                     [this](int64_t tries) {
                       const double done =
                           static_cast<double>(tries) / static_cast<double>(tries + kUsualTries);
                       passes_.Report(
                           static_cast<int64_t>(done * static_cast<double>(capture_.num_tokens())));
                     }));
  if (!ladder_.diagnosis.before.exact()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(ladder_.draws, DiagnoseDraws(capture_, *replay_, ladder_.replay, path));
  return absl::OkStatus();
}

// All combinations of the factors, in the fp32 engine.
absl::Status Climb::ScoreCells(int64_t version) {
  if (ladder_.factors.empty()) {
    TakeVersion(capture_, version, ladder_.own_version, ladder_.cells[0]);
    return absl::OkStatus();
  }
  const auto bit_of = [&](Part part) -> size_t {
    const auto found = std::ranges::find(ladder_.factors, part);
    return found == ladder_.factors.end() ? 0 : size_t{1} << (found - ladder_.factors.begin());
  };
  const std::vector<bool> wanted = HavingVersion(capture_, version);
  TANDEM_ASSIGN_OR_RETURN(auto engines, weights_.Served(version, serving_->weight_dtype()));
  TANDEM_ASSIGN_OR_RETURN(const auto trainers, trainer_side_.bf16_weights
                                                   ? weights_.OfBf16Trainer(version)
                                                   : weights_.Masters(version));
  engines = WidenToFp32(engines);
  // Cells with the same weights stand together: installing costs as much as a few completions.
  const size_t weight_bits = bit_of(Part::kCast) | bit_of(Part::kHead);
  std::vector<size_t> order(ladder_.cells.size());
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
    passes_.Start(absl::StrCat("cell ", cell + 1, " of ", ladder_.cells.size()), kPrefillCost);
    TANDEM_ASSIGN_OR_RETURN(const auto scores, EngineScore(*wide_, wanted, options));
    TakeVersion(capture_, version, scores, ladder_.cells[cell]);
  }
  return absl::OkStatus();
}

// Layers as the engine has them or as the trainer has, and the head's matrix likewise.
std::vector<HostTensor> Climb::Mix(const std::vector<HostTensor>& engines,
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

absl::StatusOr<std::vector<float>> Climb::TrainerScore(const std::vector<HostTensor>& tensors,
                                                       const std::vector<bool>& wanted,
                                                       int64_t row_tokens,
                                                       const std::string& what) {
  passes_.Start(what, kTrainerCost);
  TANDEM_ASSIGN_OR_RETURN(
      const auto forward,
      TrainerForward::Create(serving_->config(), tensors, RecordedTrainer(capture_, row_tokens)));
  return forward->Score(capture_, wanted, [this](int64_t tokens) { passes_.Report(tokens); });
}

// Rungs 5 to 7: the trainer, at the weights as served and at its masters.
absl::Status Climb::ScoreTrainer(int64_t version) {
  const std::vector<bool> wanted = HavingVersion(capture_, version);
  TANDEM_ASSIGN_OR_RETURN(const auto masters, weights_.Masters(version));
  TANDEM_ASSIGN_OR_RETURN(const auto served, weights_.Served(version, serving_->weight_dtype()));
  TANDEM_ASSIGN_OR_RETURN(const auto cast,
                          TrainerScore(served, wanted, options_.row_tokens, "trainer, as served"));
  TakeVersion(capture_, version, cast, ladder_.trainer_cast);
  TANDEM_ASSIGN_OR_RETURN(const auto alone, TrainerScore(masters, wanted, 0, "trainer, alone"));
  TakeVersion(capture_, version, alone, ladder_.trainer_alone);
  TANDEM_ASSIGN_OR_RETURN(const auto packed,
                          TrainerScore(masters, wanted, options_.row_tokens, "trainer, packed"));
  TakeVersion(capture_, version, packed, ladder_.trainer_packed);
  return absl::OkStatus();
}

// Rung 8, and the trainer's own record.
absl::Status Climb::ScoreNow() {
  const int64_t now = capture_.manifest.proximal_version;
  if (versions_.size() == 1 && *versions_.begin() == now) {
    ladder_.trainer_now = ladder_.trainer_packed;
  } else {
    TANDEM_ASSIGN_OR_RETURN(const auto masters, weights_.Masters(now));
    TANDEM_ASSIGN_OR_RETURN(ladder_.trainer_now,
                            TrainerScore(masters, {}, options_.row_tokens, "trainer, now"));
  }
  ladder_.proximal_recorded =
      std::ranges::any_of(capture_.proximal_logprobs, [](float x) { return std::isfinite(x); });
  ladder_.proximal = ladder_.proximal_recorded ? capture_.proximal_logprobs : ladder_.trainer_now;
  return absl::OkStatus();
}

absl::StatusOr<Ladder> Climb::Run() {
  const auto tokens = static_cast<size_t>(capture_.num_tokens());
  ladder_.record = capture_.behaviour_logprobs;
  ladder_.factors = FactorsOf(capture_.manifest, options_.full);
  ladder_.cells.assign(size_t{1} << ladder_.factors.size(), std::vector<float>(tokens, kNaN));
  for (auto* rung : {&ladder_.trainer_cast, &ladder_.trainer_alone, &ladder_.trainer_packed}) {
    rung->assign(tokens, kNaN);
  }
  const int64_t longest = LongestSequence(capture_);
  const ComputeDType dtype = engine_side_.bf16_weights ? ComputeDType::kBf16 : ComputeDType::kFp32;
  TANDEM_ASSIGN_OR_RETURN(
      serving_, EngineForward::Create(options_.model, dtype, longest, options_.num_threads));
  TANDEM_ASSIGN_OR_RETURN(wide_, EngineForward::Create(options_.model, ComputeDType::kFp32, longest,
                                                       options_.num_threads));
  replay_ = std::make_unique<RecordReplay>(capture_, weights_, *serving_, options_.model);
  replay_->OnProgress([this](int64_t tokens) { passes_.Report(tokens); });
  TANDEM_RETURN_IF_ERROR(ScoreServing());
  TANDEM_RETURN_IF_ERROR(Diagnose());
  replay_.reset();
  for (const int64_t version : versions_) {
    TANDEM_RETURN_IF_ERROR(ScoreCells(version));
    TANDEM_RETURN_IF_ERROR(ScoreTrainer(version));
  }
  TANDEM_RETURN_IF_ERROR(ScoreNow());
  return std::move(ladder_);
}

}  // namespace

absl::StatusOr<Ladder> ClimbLadder(const Capture& capture, const CaptureWeights& weights,
                                   const LadderOptions& options, const LadderProgress& progress) {
  return Climb(capture, weights, options, progress).Run();
}

namespace {

std::vector<double> Difference(const std::vector<float>& from, const std::vector<float>& to) {
  std::vector<double> difference(from.size());
  for (size_t t = 0; t < from.size(); ++t) {
    difference[t] = static_cast<double>(to[t]) - static_cast<double>(from[t]);
  }
  return difference;
}

// From the replay of the claims to that of all causes. Where a cause says nothing about a token it
// is the record's; where it rules the token out, the one's before.
std::vector<std::vector<float>> RecordRungs(const Ladder& ladder) {
  std::vector<std::vector<float>> rungs = ladder.diagnosis.predictions;
  for (size_t i = 1; i < rungs.size(); ++i) {
    for (size_t t = 0; t < rungs[i].size(); ++t) {
      float& value = rungs[i][t];
      if (!std::isfinite(value)) value = std::isnan(value) ? ladder.record[t] : rungs[i - 1][t];
    }
  }
  return rungs;
}

// What factor i adds on the way from all factors as in the engine to all as in the trainer.
std::vector<double> FactorPart(const Ladder& ladder, int i) {
  const std::vector<double> weights = ShapleyWeights(static_cast<int>(ladder.factors.size()), i);
  std::vector<double> part(ladder.record.size());
  for (size_t cell = 0; cell < weights.size(); ++cell) {
    for (size_t t = 0; t < part.size(); ++t) part[t] -= weights[cell] * ladder.cells[cell][t];
  }
  return part;
}

}  // namespace

TokenParts SplitTokens(const Ladder& ladder) {
  TokenParts split;
  const auto add = [&](Part part, std::vector<double> values) {
    split.parts.push_back(part);
    split.values.push_back(std::move(values));
  };
  const std::vector<std::vector<float>> predictions = RecordRungs(ladder);
  add(Part::kRecord, Difference(ladder.record, predictions.back()));
  for (size_t i = predictions.size() - 1; i > 0; --i) {
    add(ladder.diagnosis.causes[i - 1].part, Difference(predictions[i], predictions[i - 1]));
  }
  add(Part::kPath, Difference(ladder.replay.logprobs, ladder.prefill));
  if (ladder.carries_kv) add(Part::kCarriedKv, Difference(ladder.prefill, ladder.own_version));
  if (!ladder.factors.empty()) {
    add(Part::kEmulation, Difference(ladder.own_version, ladder.cells.back()));
    split.first_factor = split.parts.size();
    split.num_factors = ladder.factors.size();
    for (const std::vector<float>& cell : ladder.cells) {
      split.cells.push_back(Difference(cell, ladder.cells.front()));
    }
    for (size_t i = 0; i < ladder.factors.size(); ++i) {
      add(ladder.factors[i], FactorPart(ladder, static_cast<int>(i)));
    }
  }
  add(Part::kKernels, Difference(ladder.cells.front(), ladder.trainer_alone));
  add(Part::kLayout, Difference(ladder.trainer_alone, ladder.trainer_packed));
  add(Part::kStaleness, Difference(ladder.trainer_packed, ladder.trainer_now));
  if (ladder.proximal_recorded) {
    add(Part::kTrainerRecord, Difference(ladder.trainer_now, ladder.proximal));
  }
  return split;
}

}  // namespace tandem::drift
