#include "drift_lab/replay/replay_numbers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/drift/drift_splits.h"
#include "common/offpolicy/policy_objective.h"
#include "common/statistics/distributions.h"

namespace tandem::drift {
namespace {

using offpolicy::Interval;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double QuotientOrNaN(double sum, double count) { return count > 0 ? sum / count : kNaN; }

// Sums over tokens with A != 0.
struct UseSums {
  double tokens = 0, kept = 0, u = 0, u2 = 0;

  void Add(double weight) {
    ++tokens;
    kept += weight != 0;
    u += weight;
    u2 += weight * weight;
  }
  void Merge(const UseSums& other, double times) {
    tokens += times * other.tokens;
    kept += times * other.kept;
    u += times * other.u;
    u2 += times * other.u2;
  }
  double ess_fraction() const { return tokens == 0 ? kNaN : u2 > 0 ? u * u / (tokens * u2) : 0; }
};

// The sums of a cluster of completions that do not need inner products of gradients.
struct ClusterUse {
  UseSums all, positive, negative;
  double denominator = 0;

  void Merge(const ClusterUse& other, double times) {
    all.Merge(other.all, times);
    positive.Merge(other.positive, times);
    negative.Merge(other.negative, times);
    denominator += times * other.denominator;
  }
};

// The clusters are the groups that have a trained completion.
struct Clusters {
  std::vector<int64_t> cluster_of;                // [S]; -1: nothing is trained in the group
  std::vector<std::pair<size_t, size_t>> tokens;  // [C] range
  std::vector<bool> trained;                      // [S]
  int64_t num_completions = 0;                    // trained

  size_t size() const { return tokens.size(); }
};

Clusters FindClusters(const ReplayBatch& batch) {
  Clusters clusters{.trained = std::vector<bool>(batch.group.size())};
  std::vector<size_t> begin(batch.group.size() + 1, batch.mask.size());
  for (size_t t = batch.mask.size(); t-- > 0;) {
    begin[static_cast<size_t>(batch.completion[t])] = t;
    if (batch.mask[t]) clusters.trained[static_cast<size_t>(batch.completion[t])] = true;
  }
  for (size_t s = 0; s < batch.group.size();) {
    size_t end = s;
    bool any = false;
    for (; end < batch.group.size() && batch.group[end] == batch.group[s]; ++end) {
      any |= clusters.trained[end];
      clusters.num_completions += clusters.trained[end];
    }
    const int64_t place = any ? static_cast<int64_t>(clusters.size()) : -1;
    clusters.cluster_of.insert(clusters.cluster_of.end(), end - s, place);
    if (any) clusters.tokens.emplace_back(begin[s], begin[end]);
    s = end;
  }
  return clusters;
}

// u_t of the header; 0 for what the correction or the objective drops.
double WeightOf(const VariantResult& result, const ReplayBatch& batch, size_t t) {
  return -result.method.objective.slope[t] / batch.advantages[t];
}

std::vector<ClusterUse> SumUse(const ReplayBatch& batch, const Clusters& clusters,
                               const VariantResult& result) {
  const offpolicy::MethodOptions& options = result.variant->options;
  const bool all = options.correction.denominator == offpolicy::DenominatorKind::kAll;
  const std::span<const uint8_t> counted = all ? batch.mask : result.method.correction.kept;
  std::vector<ClusterUse> uses;
  for (const auto& [begin, end] : clusters.tokens) {
    ClusterUse& use = uses.emplace_back();
    for (size_t t = begin; t < end; ++t) {
      if (!batch.mask[t] || batch.advantages[t] == 0) continue;
      const double u = WeightOf(result, batch, t);
      use.all.Add(u);
      (batch.advantages[t] > 0 ? use.positive : use.negative).Add(u);
    }
    const auto completions = std::span(batch.completion).subspan(begin, end - begin);
    use.denominator = offpolicy::ComputeLossScales(counted.subspan(begin, end - begin), completions,
                                                   completions.back() - completions.front() + 1,
                                                   options.objective)
                          .denominator;
  }
  return uses;
}

// [C, C] inner products of the clusters' gradients under two variants.
struct Products {
  size_t size = 0;
  std::vector<double> values;

  double At(std::span<const double> counts) const {
    double sum = 0;
    for (size_t i = 0; i < size; ++i) {
      if (counts[i] == 0) continue;
      double row = 0;
      for (size_t j = 0; j < size; ++j) row += counts[j] * values[i * size + j];
      sum += counts[i] * row;
    }
    return sum;
  }
  double Trace() const {
    double sum = 0;
    for (size_t i = 0; i < size; ++i) sum += values[i * size + i];
    return sum;
  }
};

// `place` [N] is the cluster of each request, in [0, size).
Products SumProducts(const GradientGram& gram, std::span<const int64_t> place, size_t size,
                     std::span<const double> a, std::span<const double> b) {
  Products products{size, std::vector<double>(size * size)};
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == 0) continue;
    double* const row = products.values.data() + static_cast<size_t>(place[i]) * size;
    for (size_t j = 0; j < b.size(); ++j) row[place[j]] += a[i] * b[j] * gram.at(i, j);
  }
  return products;
}

// All that is needed to evaluate a variant for any resample of clusters. A resample is a count per
// cluster; every squared norm and inner product is then a quadratic form in the counts.
struct Estimator {
  std::vector<ClusterUse> uses;
  Products own;
  std::array<Products, kNumReferences> with_reference;
};

enum Statistic : size_t {
  kNormRatio,
  kCosine,
  kEss = kCosine + kNumReferences,
  kKept,
  kKeptPositive,
  kKeptNegative,
  kWeightPositive,
  kWeightNegative,
  kNumStatistics
};
using Statistics = std::array<double, kNumStatistics>;

double Cosine(double product, double square_a, double square_b) {
  if (!(square_a > 0) || !(square_b > 0)) return kNaN;
  return std::clamp(product / std::sqrt(square_a * square_b), -1.0, 1.0);
}

ClusterUse Total(const std::vector<ClusterUse>& uses, std::span<const double> counts) {
  ClusterUse total;
  for (size_t c = 0; c < uses.size(); ++c) {
    if (counts[c] != 0) total.Merge(uses[c], counts[c]);
  }
  return total;
}

double Norm(double square, double denominator) {
  return denominator > 0 ? std::sqrt(std::max(0.0, square)) / denominator : 0;
}

// `references` are the first kNumReferences estimators.
Statistics Evaluate(const Estimator& of, std::span<const Estimator> references,
                    std::span<const double> counts) {
  Statistics result;
  const ClusterUse use = Total(of.uses, counts);
  const double square = of.own.At(counts);
  for (size_t r = 0; r < kNumReferences; ++r) {
    const double reference_square = references[r].own.At(counts);
    result[kCosine + r] = Cosine(of.with_reference[r].At(counts), square, reference_square);
    if (r > 0) continue;
    const double denominator = Total(references[r].uses, counts).denominator;
    result[kNormRatio] =
        QuotientOrNaN(Norm(square, use.denominator), Norm(reference_square, denominator));
  }
  result[kEss] = use.all.ess_fraction();
  result[kKept] = QuotientOrNaN(use.all.kept, use.all.tokens);
  result[kKeptPositive] = QuotientOrNaN(use.positive.kept, use.positive.tokens);
  result[kKeptNegative] = QuotientOrNaN(use.negative.kept, use.negative.tokens);
  result[kWeightPositive] = QuotientOrNaN(use.positive.u, use.positive.kept);
  result[kWeightNegative] = QuotientOrNaN(use.negative.u, use.negative.kept);
  return result;
}

// With fewer groups than kLeastClusters that have a kept token, a bootstrap is not credible.
bool HasIntervals(const Estimator& estimator) {
  return std::ranges::count_if(estimator.uses, [](const ClusterUse& use) {
           return use.all.kept > 0;
         }) >= offpolicy::kLeastClusters;
}

// [M][kNumStatistics], all variants from the same resamples.
std::vector<std::array<Interval, kNumStatistics>> Bootstrap(
    std::span<const Estimator> estimators, size_t num_clusters,
    const offpolicy::BootstrapOptions& options) {
  const std::span<const Estimator> references = estimators.first(kNumReferences);
  std::vector<std::array<Interval, kNumStatistics>> intervals(estimators.size());
  const auto resample = [&](const Estimator& of, int64_t replicates) {
    std::array<std::vector<double>, kNumStatistics> values;
    std::vector<double> counts(num_clusters);
    offpolicy::ClusterResampler resampler(static_cast<int64_t>(num_clusters), options.seed);
    for (int64_t r = 0; r < replicates; ++r) {
      std::ranges::copy(resampler.Next(), counts.begin());
      const Statistics sample = Evaluate(of, references, counts);
      for (size_t k = 0; k < kNumStatistics; ++k) values[k].push_back(sample[k]);
    }
    return values;
  };
  for (size_t m = 0; m < estimators.size(); ++m) {
    std::vector<double> counts(num_clusters, 1);
    const Statistics whole = Evaluate(estimators[m], references, counts);
    for (size_t k = 0; k < kNumStatistics; ++k) intervals[m][k].value = whole[k];
    if (!HasIntervals(estimators[m])) continue;
    auto replicates = resample(estimators[m], options.replicates);
    std::array<std::vector<double>, kNumStatistics> leave_one_out;
    for (size_t c = 0; c < num_clusters; ++c) {
      counts[c] = 0;
      const Statistics sample = Evaluate(estimators[m], references, counts);
      for (size_t k = 0; k < kNumStatistics; ++k) leave_one_out[k].push_back(sample[k]);
      counts[c] = 1;
    }
    for (size_t k = 0; k < kNumStatistics; ++k) {
      Interval interval =
          offpolicy::BcaInterval(whole[k], replicates[k], leave_one_out[k], options.level);
      // An interval that excludes the value has a bias that cannot be corrected.
      if (interval.Excludes(whole[k])) interval = {.value = whole[k]};
      intervals[m][k] = interval;
    }
  }
  return intervals;
}

// The variance of g if it were a sum of n independent gradients:
// n / (n - 1) (sum |g_i|^2 - |sum g_i|^2 / n) / D^2.
double Variance(double squares, double square_of_sum, double n, double denominator) {
  if (n < 2 || denominator <= 0) return kNaN;
  return std::max(0.0, n / (n - 1) * (squares - square_of_sum / n)) / (denominator * denominator);
}

// sum_i |g_i|^2 over completions.
double SquaresByCompletion(const GradientGram& gram, std::span<const int64_t> completion,
                           std::span<const double> weights) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    for (size_t j = i; j < weights.size() && completion[j] == completion[i]; ++j) {
      sum += (i == j ? 1 : 2) * weights[i] * weights[j] * gram.at(i, j);
    }
  }
  return sum;
}

std::vector<LengthShare> ShareByLength(const ReplayBatch& batch, const VariantResult& result) {
  std::map<int64_t, int64_t> lengths;
  for (const int64_t completion : batch.completion) ++lengths[completion];
  std::map<int, UseSums> buckets;
  for (size_t t = 0; t < batch.mask.size(); ++t) {
    if (!batch.mask[t] || batch.advantages[t] == 0) continue;
    buckets[offpolicy::LengthBucket(lengths[batch.completion[t]])].Add(WeightOf(result, batch, t));
  }
  std::vector<LengthShare> shares;
  for (const auto& [bucket, sums] : buckets) {
    shares.push_back({offpolicy::LengthBucketLabel(bucket), static_cast<int64_t>(sums.tokens),
                      QuotientOrNaN(sums.kept, sums.tokens), QuotientOrNaN(sums.u, sums.kept)});
  }
  return shares;
}

// Why the gradient of product weights is not a credible reference, or "": if few completions carry
// it, it says nothing about the policy.
std::string ReasonToWithhold(const ReplayBatch& batch, const VariantResult& exact) {
  std::map<int64_t, double> weight_of;
  for (size_t t = 0; t < batch.mask.size(); ++t) {
    const double weight = exact.method.correction.weight[t];
    if (batch.mask[t] && batch.advantages[t] != 0 && weight > 0) {
      weight_of[batch.completion[t]] = weight;
    }
  }
  std::vector<double> weights;
  double squares = 0, largest = 0;
  for (const auto& [completion, w] : weight_of) {
    weights.push_back(w);
    squares += w * w;
    largest = std::max(largest, w * w);
  }
  if (weights.size() < 2) return "";
  if (largest > squares / 2) {
    return absl::StrFormat("one completion has %.0f %% of the sum of squared product weights",
                           100 * largest / squares);
  }
  const bool spread = squares / static_cast<double>(weights.size()) - 1 > 0.01;
  const double tail = offpolicy::ParetoTailIndex(weights);
  if (!(tail >= offpolicy::kHeavyTail) || !spread) return "";
  return absl::StrFormat(
      "product weights have a Pareto tail of index %.2f (0.7 and more: no mean settles)", tail);
}

ReplayRow MakeRow(const ReplayBatch& batch, const VariantResult& result, const Estimator& estimator,
                  const std::array<Interval, kNumStatistics>& intervals) {
  ReplayRow row{.variant = *result.variant, .denominator = result.method.denominator};
  const std::vector<double> once(estimator.uses.size(), 1);
  row.gradient_norm = Norm(estimator.own.At(once), row.denominator);
  row.norm_ratio = intervals[kNormRatio];
  for (size_t r = 0; r < kNumReferences; ++r) row.cosine[r] = intervals[kCosine + r];
  row.ess_fraction = intervals[kEss];
  row.effective_tokens = row.ess_fraction.value * Total(estimator.uses, once).all.tokens;
  row.kept = intervals[kKept];
  row.kept_positive = intervals[kKeptPositive];
  row.kept_negative = intervals[kKeptNegative];
  row.mean_weight_positive = intervals[kWeightPositive];
  row.mean_weight_negative = intervals[kWeightNegative];
  row.by_length = ShareByLength(batch, result);
  return row;
}

}  // namespace

ReplayNumbers ComputeReplayNumbers(const ReplayBatch& batch, std::span<const VariantResult> results,
                                   const GradientGram& gram,
                                   std::span<const int64_t> request_completion,
                                   const offpolicy::BootstrapOptions& options) {
  const Clusters clusters = FindClusters(batch);
  ReplayNumbers numbers{.num_completions = clusters.num_completions,
                        .num_groups = static_cast<int64_t>(clusters.size()),
                        .exact_withheld = ReasonToWithhold(batch, results[kNumReferences - 1])};
  std::vector<int64_t> cluster_of;
  for (const int64_t s : request_completion) {
    cluster_of.push_back(clusters.cluster_of[static_cast<size_t>(s)]);
  }
  std::vector<Estimator> estimators;
  for (const VariantResult& result : results) {
    Estimator& estimator = estimators.emplace_back();
    estimator.uses = SumUse(batch, clusters, result);
    estimator.own = SumProducts(gram, cluster_of, clusters.size(), result.weights, result.weights);
    for (size_t r = 0; r < kNumReferences; ++r) {
      estimator.with_reference[r] =
          SumProducts(gram, cluster_of, clusters.size(), result.weights, results[r].weights);
    }
  }
  const auto intervals = Bootstrap(estimators, clusters.size(), options);
  const std::vector<double> once(clusters.size(), 1);
  for (size_t m = 0; m < results.size(); ++m) {
    ReplayRow row = MakeRow(batch, results[m], estimators[m], intervals[m]);
    const double square = estimators[m].own.At(once);
    row.variance = Variance(SquaresByCompletion(gram, request_completion, results[m].weights),
                            square, static_cast<double>(numbers.num_completions), row.denominator);
    row.variance_by_group = Variance(estimators[m].own.Trace(), square,
                                     static_cast<double>(numbers.num_groups), row.denominator);
    if (!numbers.exact_withheld.empty()) row.cosine[kNumReferences - 1] = {.value = kNaN};
    numbers.rows.push_back(std::move(row));
  }
  numbers.num_tokens = static_cast<int64_t>(Total(estimators.front().uses, once).all.tokens);
  return numbers;
}

}  // namespace tandem::drift
