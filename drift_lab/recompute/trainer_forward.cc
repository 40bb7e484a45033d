#include "drift_lab/recompute/trainer_forward.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/formats/plan_text.h"
#include "common/model/quantisation_plan.h"
#include "common/tensor/torch_status.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/experience/row_plan.h"
#include "trainer/policy/policy.h"

namespace tandem::drift {
namespace {

using offpolicy::Capture;

// The completions of a row, by group.
using Row = std::vector<std::vector<int64_t>>;

// The rows of a trainer with one rank and one minibatch that trains the wanted completions.
std::vector<Row> PlanRows(const Capture& capture, const std::vector<bool>& wanted,
                          int64_t row_tokens) {
  std::vector<trainer::GroupLengths> groups;
  std::vector<int64_t> first;  // of each group
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const int32_t group = capture.group[static_cast<size_t>(s)];
    if (s == 0 || group != capture.group[static_cast<size_t>(s) - 1]) {
      groups.push_back({.prompt = std::ssize(capture.prompt(group))});
      first.push_back(s);
    }
    const bool scored = wanted.empty() || wanted[static_cast<size_t>(s)];
    groups.back().completions.push_back(scored ? std::ssize(capture.ids(s)) : 0);
  }
  std::vector<Row> rows;
  for (const auto& parts :
       trainer::FillRows(groups, 0, std::ssize(groups), row_tokens, /*whole_groups=*/false)) {
    Row& row = rows.emplace_back();
    for (const trainer::GroupPart& part : parts) {
      const int64_t begin = first[static_cast<size_t>(part.group)];
      auto& completions = row.emplace_back();
      for (const int64_t i : part.completions) completions.push_back(begin + i);
    }
  }
  return rows;
}

// The ids that each token of a completion was sampled from, where filters left some out.
std::vector<SupportView> SupportOf(const Capture& capture, int64_t s) {
  std::vector<SupportView> support;
  for (int64_t t = capture.begin_of(s); t < capture.begin_of(s + 1); ++t) {
    support.push_back(capture.support(t));
  }
  return support;
}

absl::StatusOr<trainer::PackedRow> Pack(const Capture& capture, const Row& row) {
  std::vector<trainer::GroupTokens> groups;
  for (const std::vector<int64_t>& part : row) {
    trainer::GroupTokens& tokens =
        groups.emplace_back(trainer::GroupTokens{.prompt = capture.prompt_of(part.front())});
    for (const int64_t s : part) {
      tokens.completions.push_back(capture.ids(s));
      if (!capture.packed_support.empty()) tokens.support.push_back(SupportOf(capture, s));
    }
  }
  return trainer::PackRow(groups);
}

}  // namespace

TrainerForwardOptions RecordedTrainer(const Capture& capture, int64_t row_tokens) {
  const offpolicy::CaptureManifest& m = capture.manifest;
  const offpolicy::CapturedWeights* const known = capture.WeightsOf(m.proximal_version);
  const bool dither = known != nullptr && known->rounding == "dither";
  return {.dtype = m.trainer.dtype == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32,
          .numerics = m.trainer.numerics == NumericsName(Numerics::kExact) ? Numerics::kExact
                                                                           : Numerics::kFast,
          .rounding = dither ? trainer::Rounding::kDither : trainer::Rounding::kNearest,
          .row_tokens = row_tokens,
          .weights = m.trainer.weights};
}

int64_t PackedRowTokens(const Capture& capture) {
  const int64_t recorded = capture.manifest.trainer.row_tokens;
  return recorded > 0 ? recorded : 2048;
}

double MaxAbsDifference(const std::vector<float>& a, const std::vector<float>& b,
                        int64_t* num_tokens) {
  double largest = 0;
  int64_t count = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    const double difference = std::abs(static_cast<double>(a[t]) - static_cast<double>(b[t]));
    if (!std::isfinite(difference)) continue;
    ++count;
    largest = std::max(largest, difference);
  }
  if (num_tokens != nullptr) *num_tokens = count;
  return largest;
}

struct TrainerForward::Impl {
  TrainerForwardOptions options;
  std::unique_ptr<trainer::Policy> policy;
};

TrainerForward::TrainerForward(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainerForward::~TrainerForward() = default;

absl::StatusOr<std::unique_ptr<TrainerForward>> TrainerForward::Create(
    const ModelConfig& config, const std::vector<HostTensor>& tensors,
    const TrainerForwardOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  TANDEM_ASSIGN_OR_RETURN(const QuantisationOptions imitated, OptionsOfPlan(options.weights));
  TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan, MakeQuantisationPlan(config, imitated));
  TANDEM_ASSIGN_OR_RETURN(impl->policy,
                          trainer::Policy::Create(config, tensors, options.dtype, options.trainable,
                                                  options.numerics, Device::kCpu, {plan}));
  impl->policy->WeightsChanged(options.rounding);
  return std::unique_ptr<TrainerForward>(new TrainerForward(std::move(impl)));
}

absl::StatusOr<std::vector<float>> TrainerForward::Score(const Capture& capture,
                                                         const std::vector<bool>& wanted,
                                                         ScoreProgress progress) {
  TANDEM_ASSIGN_OR_RETURN(TrainerScores scores, ScoreIn({}, capture, wanted, progress));
  return std::move(scores.logprobs);
}

absl::StatusOr<TrainerScores> TrainerForward::ScoreIn(const ScoreWay& way, const Capture& capture,
                                                      const std::vector<bool>& wanted,
                                                      ScoreProgress progress) {
  TANDEM_CHECK(!way.as_update || impl_->options.trainable);
  const double temperature = way.temperature > 0
                                 ? way.temperature
                                 : static_cast<double>(capture.manifest.sampling.temperature);
  TrainerScores scores;
  for (auto* column : {&scores.logprobs, &scores.entropies}) {
    column->assign(static_cast<size_t>(capture.num_tokens()),
                   std::numeric_limits<float>::quiet_NaN());
  }
  int64_t done = 0;
  for (const Row& row : PlanRows(capture, wanted, impl_->options.row_tokens)) {
    TANDEM_ASSIGN_OR_RETURN(const trainer::PackedRow packed, Pack(capture, row));
    TANDEM_ASSIGN_OR_RETURN(const trainer::TokenScores scored,
                            impl_->policy->Score(packed, temperature, way.as_update));
    const float* logprobs = scored.logprobs.const_data_ptr<float>();
    const float* entropies = scored.entropies.const_data_ptr<float>();
    auto place = packed.completion_segments.begin();
    for (const int64_t s : row | std::views::join) {
      const trainer::Segment& segment = packed.segments[static_cast<size_t>(*place++)];
      const int64_t to = capture.begin_of(s);
      std::copy(logprobs + segment.begin, logprobs + segment.end, scores.logprobs.begin() + to);
      std::copy(entropies + segment.begin, entropies + segment.end, scores.entropies.begin() + to);
      for (int64_t t = to; t < capture.begin_of(s + 1); ++t) {
        if (capture.is_drawn(t)) continue;
        scores.logprobs[static_cast<size_t>(t)] = scores.entropies[static_cast<size_t>(t)] =
            std::numeric_limits<float>::quiet_NaN();
      }
      done += segment.end - segment.begin;
    }
    progress(done);
  }
  return scores;
}

absl::StatusOr<std::vector<float>> TrainerForward::Differentiate(
    const Capture& capture, int64_t s, std::span<const double> direction,
    absl::FunctionRef<void(std::span<const float> gradient)> take) {
  TANDEM_CHECK(impl_->options.trainable);
  TANDEM_ASSIGN_OR_RETURN(const trainer::PackedRow row, Pack(capture, {{s}}));
  TANDEM_ASSIGN_OR_RETURN(
      const trainer::TokenScores scored,
      impl_->policy->Score(row, static_cast<double>(capture.manifest.sampling.temperature),
                           /*with_gradient=*/true));
  const trainer::Segment& segment =
      row.segments[static_cast<size_t>(row.completion_segments.front())];
  return CatchTorch("gradient of a completion", [&] {
    at::Tensor slope = at::zeros({row.num_tokens()}, at::kFloat);
    std::ranges::transform(direction, slope.data_ptr<float>() + segment.begin,
                           [](double value) { return static_cast<float>(value); });
    scored.logprobs.backward(slope);
    for (const trainer::NamedParameter& parameter : impl_->policy->parameters()) {
      at::Tensor& gradient = parameter.master.mutable_grad();
      take({gradient.const_data_ptr<float>(), static_cast<size_t>(gradient.numel())});
      gradient.zero_();
    }
    const float* logprobs = scored.logprobs.const_data_ptr<float>();
    return std::vector<float>(logprobs + segment.begin, logprobs + segment.end);
  });
}

int64_t TrainerForward::num_parameters() const {
  int64_t count = 0;
  for (const trainer::NamedParameter& parameter : impl_->policy->parameters()) {
    count += parameter.master.numel();
  }
  return count;
}

}  // namespace tandem::drift
