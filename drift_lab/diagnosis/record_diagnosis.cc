#include "drift_lab/diagnosis/record_diagnosis.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "common/base/status_macros.h"
#include "drift_lab/diagnosis/cause_strength.h"
#include "drift_lab/hypotheses/hypothesis_families.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;

constexpr size_t kMostCauses = 3;
constexpr int kRefinements = 3;
// A cause is kept for the next round if it removes kLeastGain of the difference, or makes that
// share of the tokens match. In the end it is named if everything is explained, or if it removed
// kLeastGainAlone.
constexpr double kLeastGain = 0.1, kLeastGainAlone = 0.5;

double GainOf(const Fit& before, const Fit& after) {
  if (before.mean_abs <= 0) return 0;
  return std::max(1 - after.mean_abs / before.mean_abs, after.matched - before.matched);
}

// The completions on which hypotheses are tried: mostly some whose record differs, and a few whose
// record does not, so that a fault of only some rows can be recognised.
std::vector<bool> ScreenOf(const Capture& capture, const EngineScores& claimed,
                           const DiagnosisOptions& options) {
  std::vector<size_t> differing, same;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    bool differs = false;
    for (int64_t t = capture.begin_of(s); t < capture.begin_of(s + 1); ++t) {
      const auto place = static_cast<size_t>(t);
      differs |= std::abs(Residual(capture.behaviour_logprobs[place], claimed.logprobs[place])) >
                 kSameLogprob;
    }
    (differs ? differing : same).push_back(static_cast<size_t>(s));
  }
  std::mt19937_64 random(options.seed);
  std::vector<bool> screen(static_cast<size_t>(capture.num_completions()));
  const auto take = [&](std::vector<size_t>& from, int64_t count, int64_t tokens) {
    std::ranges::shuffle(from, random);
    int64_t taken = 0;
    for (const size_t s : from) {
      if (taken >= 4 * count || (taken >= count && tokens <= 0)) break;
      screen[s] = true;
      ++taken;
      tokens -= std::ssize(capture.ids(static_cast<int64_t>(s)));
    }
  };
  take(differing, options.screened_completions, options.screened_tokens);
  take(same, options.screened_completions / 4, 0);
  return screen;
}

// A hash of every token and all ids before it.
std::vector<uint64_t> ContextsOf(const Capture& capture) {
  std::vector<uint64_t> contexts;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    uint64_t context = HashTokenIds(capture.prompt_of(s));
    for (const int32_t id : capture.ids(s)) {
      const int32_t words[] = {static_cast<int32_t>(context), static_cast<int32_t>(context >> 32),
                               id};
      contexts.push_back(context = HashTokenIds(words));
    }
  }
  return contexts;
}

class Diagnosis {
 public:
  Diagnosis(const Capture& capture, RecordReplay& replay, const EngineScores& claimed,
            rollout::ScorePath path, const DiagnosisOptions& options,
            const std::function<void(int64_t)>& progress)
      : capture_(capture),
        claimed_(claimed),
        options_(options),
        progress_(progress),
        bootstrap_{.replicates = options.bootstrap_replicates, .seed = options.seed},
        search_(capture, replay, path) {}

  absl::StatusOr<RecordDiagnosis> Run() {
    out_.before = out_.after = FitOf(capture_.behaviour_logprobs, claimed_.logprobs);
    out_.predictions = {claimed_.logprobs};
    if (out_.before.identical()) return std::move(out_);
    FindShifts(claimed_.logprobs);
    TANDEM_RETURN_IF_ERROR(Search());
    TANDEM_RETURN_IF_ERROR(Finish());
    Describe();
    FitRest();
    if (out_.noise.believed()) {
      out_.causes.push_back(DescribeNoise(out_.noise));
      out_.predictions.push_back(capture_.behaviour_logprobs);
    } else if (!out_.explained) {
      // Without an explanation of the whole difference, causes with a small gain are not credible.
      while (!steps_.empty() && steps_.back().gain < kLeastGainAlone) {
        steps_.pop_back();
        out_.causes.pop_back();
        out_.predictions.pop_back();
      }
      out_.after = FitOf(capture_.behaviour_logprobs, out_.predictions.back());
    }
    out_.num_tries = search_.num_tries();
    return std::move(out_);
  }

 private:
  // A cause found so far; its replay includes those before it.
  struct Step {
    Part part;
    Attempt attempt;  // over all completions, once Finish has run
    double gain = 0;
  };

  absl::Status Search() {
    search_.Screen(ScreenOf(capture_, claimed_, options_));
    TANDEM_ASSIGN_OR_RETURN(base_, Report(search_.Try({}, Part::kRecord)));
    while (!base_.fit.exact() && steps_.size() < kMostCauses) {
      TANDEM_ASSIGN_OR_RETURN(const bool added, AddBest());
      if (!added) break;
      TANDEM_RETURN_IF_ERROR(Refine());
      if (base_.fit.exact()) break;
      // Some shifts can be recognised only once the other causes are accounted for.
      const int64_t shifted = out_.shifts.num_shifted;
      FindShifts(base_.scores.logprobs);
      if (out_.shifts.num_shifted == shifted) continue;
      TANDEM_ASSIGN_OR_RETURN(base_, Report(search_.Try(base_.hypothesis, base_.part)));
    }
    return absl::OkStatus();
  }

  // Adds one more cause; false if no family removes enough.
  absl::StatusOr<bool> AddBest() {
    Attempt best = base_;
    for (const FamilySearch family : AllFamilies()) {
      TANDEM_ASSIGN_OR_RETURN(Attempt attempt, Report(family(search_, base_)));
      // There is one cause per family: a cause that is already held is refined and not added again.
      const bool held = std::ranges::any_of(
          steps_, [&](const Step& step) { return FamilyOf(step.part) == family; });
      if (!held && attempt.fit.mean_abs < best.fit.mean_abs) best = std::move(attempt);
      if (best.fit.exact()) break;
    }
    const double gain = GainOf(base_.fit, best.fit);
    if (gain < kLeastGain) return false;
    const bool also_temperature = best.hypothesis.Has(Part::kTemperature) &&
                                  best.part != Part::kTemperature &&
                                  !base_.hypothesis.Has(Part::kTemperature);
    base_ = std::move(best);
    if (also_temperature) steps_.push_back({Part::kTemperature, base_, gain});
    steps_.push_back({base_.part, base_, gain});
    return true;
  }

  // Searches each cause again, over what the others leave.
  absl::Status Refine() {
    for (int round = 0; round < kRefinements && steps_.size() > 1 && !base_.fit.exact(); ++round) {
      const double before = base_.fit.mean_abs;
      for (Step& step : steps_) {
        TANDEM_ASSIGN_OR_RETURN(Attempt attempt, Report(FamilyOf(step.part)(search_, base_)));
        if (attempt.fit.mean_abs >= base_.fit.mean_abs) continue;
        step.part = attempt.part;
        base_ = std::move(attempt);
      }
      if (base_.fit.mean_abs > 0.99 * before) break;
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    TANDEM_RETURN_IF_ERROR(ReplayAll());
    if (steps_.empty()) return absl::OkStatus();
    // Tokens off the screen may show more: a retained set of less mass, or a later position.
    base_ = steps_.back().attempt;
    if (!base_.fit.exact()) {
      FindShifts(base_.scores.logprobs);
      for (Step& step : steps_) {
        TANDEM_RETURN_IF_ERROR(KeepBetter(Report(FamilyOf(step.part)(search_, base_)), base_));
      }
      TANDEM_RETURN_IF_ERROR(ReplayAll());
    }
    return DropFalseShifts();
  }

  // A row that the other causes explain where it stands was not shifted. (Rows that repeat a token can
  // look so before those causes are known.)
  absl::Status DropFalseShifts() {
    if (out_.shifts.num_shifted == 0) return absl::OkStatus();
    search_.Shift({});
    TANDEM_ASSIGN_OR_RETURN(const Attempt in_place,
                            Report(search_.Try(steps_.back().attempt.hypothesis, Part::kShift)));
    std::vector<int> shift = out_.shifts.shift;
    for (int64_t s = 0; s < capture_.num_completions(); ++s) {
      double largest = 0;
      for (int64_t t = capture_.begin_of(s); t < capture_.begin_of(s + 1); ++t) {
        const auto place = static_cast<size_t>(t);
        const double residual =
            Residual(capture_.behaviour_logprobs[place], in_place.predicted[place]);
        if (!std::isnan(residual)) largest = std::max(largest, std::abs(residual));
      }
      if (largest <= kSameLogprob) shift[static_cast<size_t>(s)] = 0;
    }
    const int64_t before = out_.shifts.num_shifted;
    out_.shifts = SummariseShifts(std::move(shift), capture_.token_offsets);
    if (out_.shifts.num_shifted > 0) search_.Shift(out_.shifts.shift);
    return out_.shifts.num_shifted == before ? absl::OkStatus() : ReplayAll();
  }

  // Replays the causes found, one after the other, over all completions.
  absl::Status ReplayAll() {
    const RecordHypothesis all = base_.hypothesis;
    search_.Screen({});
    RecordHypothesis so_far;
    for (Step& step : steps_) {
      so_far.Adopt(step.part, all);
      if (step.part == Part::kStalePrefix) {
        // The stale rows are known for the screen only, so they are searched again.
        RecordHypothesis open = so_far;
        open.Clear(Part::kStalePrefix);
        TANDEM_ASSIGN_OR_RETURN(Attempt without, search_.Try(open, step.part));
        TANDEM_ASSIGN_OR_RETURN(step.attempt, Report(SearchStalePrefix(search_, without)));
        so_far = step.attempt.hypothesis;
      } else {
        TANDEM_ASSIGN_OR_RETURN(step.attempt, Report(search_.Try(so_far, step.part)));
      }
      step.attempt.part = step.part;
    }
    return absl::OkStatus();
  }

  // Finds rows that are shifted against `predicted` [T], which includes the shifts found so far.
  void FindShifts(const std::vector<float>& predicted) {
    std::vector<int> shift =
        EstimateShifts(capture_.behaviour_logprobs, predicted, capture_.token_offsets, kSameLogprob)
            .shift;
    for (size_t s = 0; s < out_.shifts.shift.size(); ++s) {
      if (out_.shifts.shift[s] != 0) shift[s] = out_.shifts.shift[s];
    }
    out_.shifts = SummariseShifts(std::move(shift), capture_.token_offsets);
    if (out_.shifts.num_shifted > 0) search_.Shift(out_.shifts.shift);
  }

  // Is noise what no replay explains?
  void FitRest() {
    const std::vector<float>& predicted = out_.predictions.back();
    const EngineScores& scores = steps_.empty() ? claimed_ : steps_.back().attempt.scores;
    out_.after = FitOf(capture_.behaviour_logprobs, predicted);
    out_.explained = out_.after.identical() || (!out_.causes.empty() && out_.after.exact());
    if (out_.explained || !options_.same_arithmetic) return;
    std::vector<double> residual(predicted.size());
    for (size_t t = 0; t < residual.size(); ++t) {
      residual[t] = -Residual(capture_.behaviour_logprobs[t], predicted[t]);
    }
    const std::vector<int32_t> sequence = offpolicy::MakeCaptureRecord(capture_).sequence;
    const std::vector<uint64_t> context = ContextsOf(capture_);
    out_.noise =
        FitNoise({residual, predicted, scores.squared_probs, sequence, context}, bootstrap_);
    out_.explained = out_.noise.believed();
  }

  void Describe() {
    out_.predictions = {claimed_.logprobs};
    if (out_.shifts.num_shifted > 0) {
      out_.causes.push_back(DescribeShift(out_.shifts));
      out_.predictions.push_back(
          ShiftRows(claimed_.logprobs, out_.shifts.shift, capture_.token_offsets));
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      Attempt none;
      none.predicted = out_.predictions.back();
      out_.causes.push_back(DescribeReplayed(capture_,
                                             {.part = steps_[i].part,
                                              .attempt = steps_[i].attempt,
                                              .without = i == 0 ? none : steps_[i - 1].attempt,
                                              .all = steps_.back().attempt},
                                             search_.tried(), bootstrap_));
      out_.predictions.push_back(steps_[i].attempt.predicted);
    }
  }

  absl::StatusOr<Attempt> Report(absl::StatusOr<Attempt> attempt) {
    progress_(search_.num_tries());
    return attempt;
  }

  const Capture& capture_;
  const EngineScores& claimed_;
  const DiagnosisOptions& options_;
  const std::function<void(int64_t)>& progress_;
  const offpolicy::BootstrapOptions bootstrap_;
  HypothesisSearch search_;
  Attempt base_;  // all steps so far, on the screen
  std::vector<Step> steps_;
  RecordDiagnosis out_;
};

}  // namespace

absl::StatusOr<RecordDiagnosis> DiagnoseRecord(const Capture& capture, RecordReplay& replay,
                                               const EngineScores& claimed, rollout::ScorePath path,
                                               const DiagnosisOptions& options,
                                               const std::function<void(int64_t)>& progress) {
  return Diagnosis(capture, replay, claimed, path, options, progress).Run();
}

}  // namespace tandem::drift
