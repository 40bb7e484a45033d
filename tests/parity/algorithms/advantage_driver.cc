// advantage_driver: advantages, value targets and the value loss of given numbers, for
// advantage_parity_test.py. Reads one JSON object from stdin, one of
//
//   {"kind": "targets", "estimator": "gae", "options": YAML of ValueTargetOptions, "rewards": [..],
//    "values": [..], "log_ratios": [..], "bootstrap": v}
//   {"kind": "group", "options": YAML of AdvantageOptions, "rewards": [..]}
//   {"kind": "whitened", "rewards": [..], "lengths": [..]}        one completion each
//   {"kind": "value_loss", "clip": c, "values": [..], "start": [..], "targets": [..]}
//
// and writes the numbers to stdout.
#include <ATen/ATen.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/offpolicy/value_targets.h"
#include "common/options/options.h"
#include "trainer/advantages/batch_advantages.h"
#include "trainer/advantages/group_advantages.h"
#include "trainer/critic/value_loss.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using Numbers = std::vector<double>;

template <typename Options>
Options ReadOptions(const json& input) {
  Options options;
  OptionBinder binder;
  BindOptions(binder, options);
  const absl::Status read = binder.LoadString(input["options"].get<std::string>(), "options");
  if (!read.ok()) std::cerr << read.ToString() << "\n";
  return options;
}

json Targets(const json& input) {
  const auto rewards = input["rewards"].get<Numbers>(), values = input["values"].get<Numbers>();
  const auto log_ratios = input["log_ratios"].get<Numbers>();
  const std::string name = input["estimator"];
  const auto estimator = name == "gae"      ? offpolicy::ValueEstimator::kGae
                         : name == "vtrace" ? offpolicy::ValueEstimator::kVtrace
                                            : offpolicy::ValueEstimator::kRetrace;
  const offpolicy::ValueTargets got =
      offpolicy::ComputeValueTargets({rewards, values, input["bootstrap"], log_ratios}, estimator,
                                     ReadOptions<offpolicy::ValueTargetOptions>(input));
  return {{"advantages", got.advantages}, {"targets", got.targets}};
}

json Group(const json& input) {
  return {{"advantages", ComputeAdvantages({.rewards = input["rewards"].get<Numbers>()},
                                           ReadOptions<AdvantageOptions>(input))}};
}

// A row of completions, one after the other.
json Whitened(const json& input) {
  const auto rewards = input["rewards"].get<Numbers>();
  const auto lengths = input["lengths"].get<std::vector<int64_t>>();
  ExperienceBatch batch;
  Microbatch& micro = batch.microbatches.emplace_back();
  for (size_t i = 0; i < rewards.size(); ++i) {
    const auto begin = static_cast<int64_t>(micro.advantages.size());
    micro.advantages.insert(micro.advantages.end(), static_cast<size_t>(lengths[i]),
                            static_cast<float>(rewards[i]));
    batch.completions.push_back({.begin = begin, .end = begin + lengths[i]});
  }
  micro.loss_mask.assign(micro.advantages.size(), 1);
  WhitenAdvantages(batch);
  json rows = json::array();
  for (const CompletionOrigin& completion : batch.completions) {
    rows.push_back(std::vector<float>(micro.advantages.begin() + completion.begin,
                                      micro.advantages.begin() + completion.end));
  }
  return {{"advantages", rows}};
}

json ValueLoss(const json& input) {
  const auto tensor = [&](const char* name) {
    return at::tensor(input[name].get<std::vector<float>>());
  };
  const at::Tensor values = tensor("values").requires_grad_(true);
  const at::Tensor ones = at::ones_like(values.detach());
  const ValueLossSums sums =
      SumValueLoss({values, tensor("start"), tensor("targets"), ones}, input["clip"]);
  sums.total.backward();
  const at::Tensor grad = values.grad().contiguous();
  const float* const data = grad.const_data_ptr<float>();
  return {{"loss", sums.total.item<double>()},
          {"grad", std::vector<float>(data, data + grad.numel())}};
}

int Main() {
  const json input = json::parse(std::cin);
  const std::string kind = input["kind"];
  const json output = kind == "targets"    ? Targets(input)
                      : kind == "group"    ? Group(input)
                      : kind == "whitened" ? Whitened(input)
                                           : ValueLoss(input);
  std::cout << output.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace tandem::trainer

int main() { return tandem::trainer::Main(); }
