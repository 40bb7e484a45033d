#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/statistics/sample_statistics.h"
#include "drift_lab/hypotheses/hypothesis_families.h"

namespace tandem::drift {
namespace {

constexpr int kSecantSteps = 8;
constexpr double kLeastAmountStep = 1e-6, kLargestAmount = 4;
// A version is followed only if this share of the residual (a cosine) points towards it.
constexpr double kLeastAlignment = 0.1;
// The correlation times sqrt(tokens) that a block of tensors may have by chance, with a margin for
// tokens that are not independent.
constexpr double kLeastAlignmentZ = 4;
constexpr double kDecidingAlignment = 0.995;
constexpr int kMostTensors = 64;  // that are tried one by one

// Finds which of a model's tensors are of another version, and how far along the way to it. To
// first order the effect of other weights on the log-probs is linear in the amount and adds up over
// tensors. Two consequences are used: the amount is found by secant steps, and the tensor by the
// correlation of its effect with the residual.
class WeightSearch {
 public:
  WeightSearch(HypothesisSearch& search, const Attempt& without)
      : search_(search),
        without_(without),
        residual_(Residuals(search.capture().behaviour_logprobs, without.predicted)) {}

  absl::StatusOr<Attempt> Try(const OtherWeights& weights, Part part) {
    RecordHypothesis hypothesis = without_.hypothesis;
    hypothesis.weights = weights;
    return search_.Try(hypothesis, part);
  }

  // The amount of the way that explains most, from the whole way on, by secant steps through the
  // last two amounts.
  absl::StatusOr<Attempt> Along(const Attempt& whole, Part part) {
    Attempt best = whole, last = whole, before = without_;
    double amount_before = 0;
    for (int i = 0; i < kSecantSteps && !best.fit.exact(); ++i) {
      OtherWeights weights = *last.hypothesis.weights;
      const double step =
          (weights.amount - amount_before) *
          offpolicy::FitSlope(Residuals(last.predicted, before.predicted),
                              Residuals(search_.capture().behaviour_logprobs, last.predicted));
      amount_before = weights.amount;
      weights.amount += step;
      if (!(std::abs(step) > kLeastAmountStep) || std::abs(weights.amount) > kLargestAmount) break;
      before = std::move(last);
      TANDEM_ASSIGN_OR_RETURN(last, Try(weights, part));
      KeepBetter(last, best);
    }
    OtherWeights weights = *best.hypothesis.weights;
    const double round = std::round(weights.amount * 1e4) / 1e4;
    if (round == weights.amount || round == 0) return best;
    weights.amount = round;
    TANDEM_ASSIGN_OR_RETURN(last, Try(weights, part));
    KeepBetter(std::move(last), best);
    return best;
  }

  // The one tensor whose other version explains most. Blocks of sqrt(n) tensors are tried first,
  // because one tensor among many has a small part of their common effect; then the tensors of the
  // best blocks one by one.
  absl::StatusOr<Attempt> OneTensor(int64_t versions_before) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            search_.replay().TensorsThatDiffer(versions_before));
    const auto width =
        std::max<size_t>(1, static_cast<size_t>(std::sqrt(static_cast<double>(names.size()))));
    std::vector<std::pair<double, std::vector<std::string>>> blocks;
    for (size_t begin = 0; begin < names.size(); begin += width) {
      OtherWeights block{.versions_before = versions_before};
      block.tensors.assign(
          names.begin() + static_cast<std::ptrdiff_t>(begin),
          names.begin() + static_cast<std::ptrdiff_t>(std::min(begin + width, names.size())));
      std::ranges::sort(block.tensors);
      TANDEM_ASSIGN_OR_RETURN(const Attempt attempt, Try(block, Part::kTensor));
      blocks.emplace_back(std::abs(Aligned(attempt)), std::move(block.tensors));
    }
    std::ranges::sort(blocks, std::ranges::greater(),
                      [](const auto& block) { return block.first; });
    Attempt best = without_;
    int tried = 0;
    const double chance =
        kLeastAlignmentZ / std::sqrt(static_cast<double>(without_.fit.num_tokens));
    for (const auto& [alignment, tensors] : blocks) {
      if (alignment < chance) break;
      for (const std::string& tensor : tensors) {
        if (++tried > kMostTensors) return best;
        TANDEM_ASSIGN_OR_RETURN(
            Attempt attempt,
            Try({.versions_before = versions_before, .tensors = {tensor}}, Part::kTensor));
        if (std::abs(Aligned(attempt)) > std::abs(Aligned(best))) best = std::move(attempt);
        if (best.fit.exact()) return best;
      }
      // The direction is the residual's but for a hundredth of its square, so it is this tensor.
      if (std::abs(Aligned(best)) > kDecidingAlignment) return best;
    }
    return best;
  }

  double Aligned(const Attempt& attempt) const {
    return offpolicy::Alignment(Residuals(attempt.predicted, without_.predicted), residual_);
  }

 private:
  HypothesisSearch& search_;
  const Attempt& without_;
  const std::vector<double> residual_;
};

// Searches the version and the amount for the tensors of `base`.
absl::StatusOr<Attempt> RefineWeights(HypothesisSearch& search, const Attempt& base) {
  RecordHypothesis open = base.hypothesis;
  open.weights.reset();
  TANDEM_ASSIGN_OR_RETURN(const Attempt without, search.Try(open, base.part));
  const std::vector<std::string>& tensors = base.hypothesis.weights->tensors;
  WeightSearch weights(search, without);
  Attempt best = base;
  for (const int64_t source : search.replay().Sources()) {
    TANDEM_RETURN_IF_ERROR(
        KeepBetter(weights.Try({.versions_before = source, .tensors = tensors},
                               tensors.empty() ? Part::kOtherVersion : Part::kTensor),
                   best));
    if (best.fit.exact()) return best;
  }
  TANDEM_RETURN_IF_ERROR(KeepBetter(
      weights.Along(base, tensors.empty() ? Part::kInterpolation : Part::kTensor), best));
  return best;
}

}  // namespace

absl::StatusOr<Attempt> SearchWeights(HypothesisSearch& search, const Attempt& base) {
  if (base.hypothesis.weights) return RefineWeights(search, base);
  Attempt best = base;
  WeightSearch weights(search, base);
  const std::vector<int64_t> sources = search.replay().Sources();
  std::vector<Attempt> wholes;
  for (const int64_t source : sources) {
    TANDEM_ASSIGN_OR_RETURN(Attempt whole,
                            weights.Try({.versions_before = source}, Part::kOtherVersion));
    KeepBetter(whole, best);
    if (best.fit.exact()) return best;
    wholes.push_back(std::move(whole));
  }
  for (const Attempt& whole : wholes) {
    if (std::abs(weights.Aligned(whole)) < kLeastAlignment) continue;
    TANDEM_RETURN_IF_ERROR(KeepBetter(weights.Along(whole, Part::kInterpolation), best));
    if (best.fit.exact()) return best;
  }
  for (const Attempt& whole : wholes) {
    TANDEM_ASSIGN_OR_RETURN(Attempt tensor,
                            weights.OneTensor(whole.hypothesis.weights->versions_before));
    if (!tensor.hypothesis.weights || tensor.hypothesis.weights->tensors.size() != 1) continue;
    TANDEM_ASSIGN_OR_RETURN(tensor, weights.Along(tensor, Part::kTensor));
    KeepBetter(std::move(tensor), best);
    if (best.fit.exact()) return best;
  }
  return best;
}

absl::StatusOr<Attempt> SearchStalePrefix(HypothesisSearch& search, const Attempt& base) {
  const offpolicy::Capture& capture = search.capture();
  std::vector<bool> cached(static_cast<size_t>(capture.num_completions()));
  bool any = false;
  for (size_t s = 0; s < cached.size(); ++s) {
    const bool wanted = search.wanted().empty() || search.wanted()[s];
    cached[s] = wanted && capture.prefix_cached[static_cast<size_t>(capture.token_offsets[s])] != 0;
    any |= cached[s];
  }
  Attempt best = base;
  if (!any) return best;
  for (const int64_t before : search.replay().VersionsBefore()) {
    RecordHypothesis hypothesis = base.hypothesis;
    hypothesis.stale_prefix = before;
    hypothesis.stale_rows = cached;
    TANDEM_ASSIGN_OR_RETURN(Attempt attempt, search.Try(hypothesis, Part::kStalePrefix));
    // A row that the replay with its own version explains better was not stale.
    for (size_t s = 0; s < cached.size(); ++s) {
      if (!cached[s]) continue;
      double stale = 0, healthy = 0;
      const int64_t begin = capture.token_offsets[s], end = capture.token_offsets[s + 1];
      for (int64_t t = begin; t < end; ++t) {
        const auto place = static_cast<size_t>(t);
        const float record = capture.behaviour_logprobs[place];
        const double with = Residual(record, attempt.predicted[place]);
        const double without = Residual(record, base.predicted[place]);
        if (std::isnan(with) || std::isnan(without)) continue;  // at the edge of a shifted row
        stale += std::abs(with);
        healthy += std::abs(without);
      }
      if (healthy > stale) continue;
      attempt.hypothesis.stale_rows[s] = false;
      std::copy(base.predicted.begin() + begin, base.predicted.begin() + end,
                attempt.predicted.begin() + begin);
      attempt.scores.Take(base.scores, begin, end, begin);
    }
    attempt.fit = FitOf(capture.behaviour_logprobs, attempt.predicted);
    KeepBetter(std::move(attempt), best);
    if (best.fit.exact()) break;
  }
  return best;
}

absl::StatusOr<Attempt> SearchFirstId(HypothesisSearch& search, const Attempt& base) {
  const ModelConfig& config = search.replay().config();
  std::set<int32_t> ids(config.eos_token_ids.begin(), config.eos_token_ids.end());
  ids.insert({0, 1, 2, config.bos_token_id});
  Attempt best = base;
  for (const int32_t id : ids) {
    if (id < 0 || id >= config.vocab_size) continue;
    RecordHypothesis hypothesis = base.hypothesis;
    hypothesis.first_id = id;
    TANDEM_RETURN_IF_ERROR(KeepBetter(search.Try(hypothesis, Part::kFirstId), best));
    if (best.fit.exact()) break;
  }
  return best;
}

}  // namespace tandem::drift
