#include "drift_lab/ladder.h"

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
#include "drift_lab/shapley.h"
#include "drift_lab/trainer_forward.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;
using rollout::ComputeDType;
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
    progress_(what_, std::min(1.0, (done_ + cost_ * static_cast<double>(tokens) / num_tokens_) / total_));
  }

 private:
  const double num_tokens_, total_;
  const LadderProgress& progress_;
  std::string what_;
  double done_ = 0, cost_ = 0;
};

// Costs of a pass against an engine prefill; only progress depends on them.
constexpr double kPrefillCost = 1, kDecodeCost = 2, kAloneCost = 1.5, kTrainerCost = 2;

// Completions with a token of `version`.
std::vector<bool> HavingVersion(const Capture& capture, int64_t version) {
  std::vector<bool> wanted(static_cast<size_t>(capture.num_completions()));
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const auto begin = capture.weight_version.begin() + capture.token_offsets[static_cast<size_t>(s)];
    const auto end = capture.weight_version.begin() + capture.token_offsets[static_cast<size_t>(s) + 1];
    wanted[static_cast<size_t>(s)] = std::find(begin, end, version) != end;
  }
  return wanted;
}

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
  absl::Status ScoreServing(int64_t version);
  absl::Status ScoreCells(int64_t version);
  std::vector<HostTensor> Mix(const std::vector<HostTensor>& engines,
                              const std::vector<HostTensor>& trainers, bool engine_layers,
                              bool engine_head) const;
  absl::Status ScoreTrainer(int64_t version);
  absl::Status ScoreNow();
  absl::StatusOr<std::vector<float>> EngineScore(EngineForward& engine, const std::vector<bool>& wanted,
                                                 const ScoreOptions& options, EngineScores* all = nullptr);
  absl::StatusOr<std::vector<float>> TrainerScore(const std::vector<HostTensor>& tensors,
                                                  const std::vector<bool>& wanted, int64_t row_tokens,
                                                  const std::string& what);
  trainer::Rounding RoundingOf(int64_t version) const;

  const Capture& capture_;
  const CaptureWeights& weights_;
  const LadderOptions& options_;
  const ScoreOptions claims_;
  const Side engine_side_, trainer_side_;
  const std::set<int64_t> versions_;
  Passes passes_;
  std::unique_ptr<EngineForward> serving_, wide_;  // in the servers' dtype, and in fp32
  Ladder ladder_;
};

double Climb::TotalCost() const {
  const double cells = std::pow(2.0, static_cast<double>(
                                         FactorsOf(capture_.manifest, options_.full).size()));
  return static_cast<double>(versions_.size()) *
             (kDecodeCost + kAloneCost + kPrefillCost + cells * kPrefillCost + 3 * kTrainerCost) +
         kTrainerCost;
}

absl::StatusOr<std::vector<float>> Climb::EngineScore(EngineForward& engine,
                                                      const std::vector<bool>& wanted,
                                                      const ScoreOptions& options,
                                                      EngineScores* all) {
  TANDEM_ASSIGN_OR_RETURN(EngineScores scores,
                          engine.Score(capture_, wanted, options,
                                       [this](int64_t tokens) { passes_.Report(tokens); }));
  std::vector<float> logprobs = scores.logprobs;
  if (all != nullptr) *all = std::move(scores);
  return logprobs;
}

// Rungs 1 to 3: the engine as it served.
absl::Status Climb::ScoreServing(int64_t version) {
  const std::vector<bool> wanted = HavingVersion(capture_, version);
  TANDEM_ASSIGN_OR_RETURN(auto served, weights_.Served(version, serving_->weight_dtype()));
  TANDEM_RETURN_IF_ERROR(serving_->Install(std::move(served)));
  ScoreOptions options = claims_;
  options.path = ScorePath::kDecode;
  passes_.Start("engine, decode replay", kDecodeCost);
  EngineScores replay;
  TANDEM_RETURN_IF_ERROR(EngineScore(*serving_, wanted, options, &replay).status());
  for (int64_t t = 0; t < capture_.num_tokens(); ++t) {
    if (capture_.weight_version[static_cast<size_t>(t)] == version) ladder_.replay.Take(replay, t, t + 1);
  }
  passes_.Start("engine, decode alone", kAloneCost);
  options.alone = true;
  TANDEM_ASSIGN_OR_RETURN(
      const auto alone,
      EngineScore(*serving_, SampleOf(wanted, options_.num_alone, options_.seed), options));
  TakeVersion(capture_, version, alone, ladder_.alone);
  passes_.Start("engine, prefill", kPrefillCost);
  TANDEM_ASSIGN_OR_RETURN(const auto prefill, EngineScore(*serving_, wanted, claims_));
  TakeVersion(capture_, version, prefill, ladder_.prefill);
  return absl::OkStatus();
}

// All combinations of the factors, in the fp32 engine.
absl::Status Climb::ScoreCells(int64_t version) {
  if (ladder_.factors.empty()) {
    TakeVersion(capture_, version, ladder_.prefill, ladder_.cells[0]);
    return absl::OkStatus();
  }
  const auto bit_of = [&](Part part) -> size_t {
    const auto found = std::ranges::find(ladder_.factors, part);
    return found == ladder_.factors.end() ? 0 : size_t{1} << (found - ladder_.factors.begin());
  };
  const std::vector<bool> wanted = HavingVersion(capture_, version);
  TANDEM_ASSIGN_OR_RETURN(auto engines, weights_.Served(version, serving_->weight_dtype()));
  TANDEM_ASSIGN_OR_RETURN(auto trainers, trainer_side_.bf16_weights ? weights_.NearestCast(version)
                                                                    : weights_.Masters(version));
  engines = WidenToFp32(engines);
  trainers = WidenToFp32(trainers);
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
    SitePrecision& precision = options.precision;
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

trainer::Rounding Climb::RoundingOf(int64_t version) const {
  const offpolicy::CapturedWeights* const known = capture_.WeightsOf(version);
  return known != nullptr && known->rounding == "dither" ? trainer::Rounding::kDither
                                                         : trainer::Rounding::kNearest;
}

absl::StatusOr<std::vector<float>> Climb::TrainerScore(const std::vector<HostTensor>& tensors,
                                                       const std::vector<bool>& wanted,
                                                       int64_t row_tokens, const std::string& what) {
  passes_.Start(what, kTrainerCost);
  const bool exact = capture_.manifest.trainer.numerics == NumericsName(Numerics::kExact);
  TANDEM_ASSIGN_OR_RETURN(
      const auto forward,
      TrainerForward::Create(
          serving_->config(), tensors,
          {.dtype = capture_.manifest.trainer.dtype == "bf16" ? trainer::ComputeDType::kBf16
                                                              : trainer::ComputeDType::kFp32,
           .numerics = exact ? Numerics::kExact : Numerics::kFast,
           .rounding = RoundingOf(capture_.manifest.proximal_version),
           .row_tokens = row_tokens}));
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
  ladder_.proximal_recorded = std::ranges::any_of(capture_.proximal_logprobs,
                                                  [](float x) { return std::isfinite(x); });
  ladder_.proximal =
      ladder_.proximal_recorded ? capture_.proximal_logprobs : ladder_.trainer_now;
  return absl::OkStatus();
}

absl::StatusOr<Ladder> Climb::Run() {
  const auto tokens = static_cast<size_t>(capture_.num_tokens());
  ladder_.record = capture_.behaviour_logprobs;
  ladder_.replay = EngineScores(capture_.num_tokens());
  ladder_.factors = FactorsOf(capture_.manifest, options_.full);
  ladder_.cells.assign(size_t{1} << ladder_.factors.size(), std::vector<float>(tokens, kNaN));
  for (auto* rung : {&ladder_.alone, &ladder_.prefill, &ladder_.trainer_cast, &ladder_.trainer_alone,
                     &ladder_.trainer_packed}) {
    rung->assign(tokens, kNaN);
  }
  const int64_t longest = LongestSequence(capture_);
  const ComputeDType dtype = engine_side_.bf16_weights ? ComputeDType::kBf16 : ComputeDType::kFp32;
  TANDEM_ASSIGN_OR_RETURN(serving_, EngineForward::Create(options_.model, dtype, longest));
  TANDEM_ASSIGN_OR_RETURN(wide_, EngineForward::Create(options_.model, ComputeDType::kFp32, longest));
  for (const int64_t version : versions_) {
    TANDEM_RETURN_IF_ERROR(ScoreServing(version));
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
  add(Part::kRecord, Difference(ladder.record, ladder.replay.logprobs));
  add(Part::kPath, Difference(ladder.replay.logprobs, ladder.prefill));
  if (!ladder.factors.empty()) {
    add(Part::kEmulation, Difference(ladder.prefill, ladder.cells.back()));
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

std::string_view PartName(Part part) {
  switch (part) {
    case Part::kRecord: return "record";
    case Part::kPath: return "path";
    case Part::kEmulation: return "emulation";
    case Part::kBody: return "body";
    case Part::kHead: return "head";
    case Part::kKv: return "kv";
    case Part::kCast: return "cast";
    case Part::kKernels: return "kernels";
    case Part::kLayout: return "layout";
    case Part::kStaleness: return "staleness";
    case Part::kTrainerRecord: break;
  }
  return "trainer_record";
}

std::string_view PartDescription(Part part) {
  switch (part) {
    case Part::kRecord: return "what the server recorded, against its own replay of the same ids";
    case Part::kPath: return "decoding token by token, against the whole sequence at once";
    case Part::kEmulation: return "the serving engine, against the fp32 engine rounded like it";
    case Part::kBody: return "precision of the linear layers' inputs";
    case Part::kHead: return "cast of the head's matrix (the embedding too where they are tied)";
    case Part::kKv: return "precision of the KV cache";
    case Part::kCast: return "cast of the weights on their way to the server";
    case Part::kKernels: return "the two forward passes, everything else equal";
    case Part::kLayout: return "completions packed in a row, against one each";
    case Part::kStaleness: return "weights now, against those that drew the token";
    case Part::kTrainerRecord: break;
  }
  return "what the trainer recorded, against its own replay";
}

}  // namespace tandem::drift
