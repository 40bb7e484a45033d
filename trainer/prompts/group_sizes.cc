#include "trainer/prompts/group_sizes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

// The share of each deviation in `scale`, within bounds.
std::vector<double> Scaled(std::span<const double> deviations, double scale, double min,
                           double max) {
  std::vector<double> sizes;
  for (const double deviation : deviations) {
    sizes.push_back(std::clamp(scale * deviation, min, max));
  }
  return sizes;
}

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// The sum of Scaled rises with the scale, so bisection finds the one that spends `total`.
std::vector<double> Divide(std::span<const double> deviations, double total, double min,
                           double max) {
  const double smallest = *std::ranges::min_element(deviations);
  double low = 0, high = max / smallest;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (Sum(Scaled(deviations, middle, min, max)) < total ? low : high) = middle;
  }
  return Scaled(deviations, high, min, max);
}

}  // namespace

void BindOptions(OptionBinder& binder, GroupSizeOptions& options) {
  binder.Choice("kind", &options.kind,
                {{"fixed", GroupSizeKind::kFixed},
                 {"adaptive", GroupSizeKind::kAdaptive},
                 {"sequential", GroupSizeKind::kSequential}},
                "completions_per_prompt for all; as many on average, and more where success is "
                "uncertain; or min first, and completions_per_prompt where their rewards differ");
  binder.Integer("min", &options.min, {.min = 1, .max = 1024}, "completions",
                 "of a group, with adaptive and sequential");
  binder.Integer("max", &options.max, {.min = 1, .max = 1024}, "completions",
                 "of a group, with adaptive");
}

absl::Status CheckOptions(const GroupSizeOptions& options, int64_t completions_per_prompt) {
  const bool adaptive = options.kind == GroupSizeKind::kAdaptive;
  if (adaptive && (completions_per_prompt < options.min || completions_per_prompt > options.max)) {
    return InvalidArgument("trainer.completions_per_prompt is ", completions_per_prompt,
                           ", the mean of group_size.kind adaptive: it must lie between "
                           "group_size.min ",
                           options.min, " and group_size.max ", options.max);
  }
  if (options.kind == GroupSizeKind::kSequential && completions_per_prompt <= options.min) {
    return InvalidArgument("trainer.completions_per_prompt is ", completions_per_prompt,
                           ", and group_size.kind sequential begins with group_size.min ",
                           options.min, ": it must be above");
  }
  if (options.kind == GroupSizeKind::kSequential && options.min < 2) {
    return InvalidArgument(
        "group_size.min is 1, and the rewards of one completion never differ: group_size.kind "
        "sequential needs at least 2");
  }
  return absl::OkStatus();
}

int64_t SmallestGroup(const GroupSizeOptions& options, int64_t completions_per_prompt) {
  return options.kind == GroupSizeKind::kFixed ? completions_per_prompt : options.min;
}

std::vector<int64_t> AllocateCompletions(std::span<const double> deviations, int64_t total,
                                         int64_t min, int64_t max) {
  const auto groups = std::ssize(deviations);
  if (groups == 0) return {};
  TANDEM_CHECK(total >= groups * min && total <= groups * max);
  // A prompt that always or never succeeded counts a little: nothing is certain of it.
  constexpr double kLeast = 1e-6;
  std::vector<double> positive(deviations.begin(), deviations.end());
  for (double& deviation : positive) deviation = std::max(deviation, kLeast);
  const std::vector<double> exact = Divide(positive, static_cast<double>(total),
                                           static_cast<double>(min), static_cast<double>(max));
  std::vector<int64_t> sizes;
  for (const double size : exact) sizes.push_back(static_cast<int64_t>(std::floor(size + 1e-9)));
  // What rounding down left goes to the largest fractions.
  std::vector<size_t> order(exact.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](size_t i) { return exact[i] - static_cast<double>(sizes[i]); });
  int64_t left = total - std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % order.size()) {
    int64_t& size = sizes[order[i]];
    if (size == max) continue;
    ++size;
    --left;
  }
  return sizes;
}

}  // namespace tandem::trainer
