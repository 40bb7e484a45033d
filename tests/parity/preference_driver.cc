// preference_driver: losses of preference learning and of reward models on given numbers, for
// preference_parity_test.py. Reads one JSON object from stdin, one of
//
//   {"kind": "pairs", "options": YAML of PreferenceLossOptions,
//    "pairs": [{"chosen": [log-prob..], "rejected": [..], "reference_chosen": [..],
//               "reference_rejected": [..], "margin": m}]}
//   {"kind": "kto", "options": .., "completions": [{"logprobs": [..], "reference": [..],
//    "desirable": true}], "mismatched": [{"logprobs": [..], "reference": [..]}]}
//   {"kind": "reward", "options": YAML of RewardModelLossOptions, "chosen": [..],
//    "rejected": [..], "margins": [..]}
//   {"kind": "data", "path": FILE, "tokenizer": DIR}    ReadPreferenceData; writes the pairs
//   {"kind": "rows", "path": PATH, "split": S, "subset": S}   RowReader; writes the rows
//
// and writes the mean loss and its gradient by every input that has one to stdout.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "common/options/options.h"
#include "common/tables/row_reader.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/preferences/preference_data.h"
#include "trainer/preferences/preference_loss.h"
#include "trainer/preferences/reward_model_loss.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using Numbers = std::vector<double>;

double Sum(const json& numbers) {
  const auto values = numbers.get<Numbers>();
  return std::accumulate(values.begin(), values.end(), 0.0);
}

template <typename Options>
absl::StatusOr<Options> ReadOptions(const json& input) {
  Options options;
  OptionBinder binder;
  BindOptions(binder, options);
  TANDEM_RETURN_IF_ERROR(binder.LoadString(input["options"].get<std::string>(), "options"));
  return options;
}

// The columns of PreferencePairs, summed up from log-probs of tokens.
struct PairColumns {
  Numbers chosen, rejected, reference_chosen, reference_rejected, margins, nll;
  std::vector<int64_t> chosen_tokens, rejected_tokens;

  void Add(const json& pair, double ld_alpha) {
    const auto tokens = [&](const char* name) { return static_cast<int64_t>(pair[name].size()); };
    const int64_t shorter = std::min(tokens("chosen"), tokens("rejected"));
    const auto sum = [&](const char* name) {
      return DesensitisedSum(pair[name].get<Numbers>(), shorter, ld_alpha);
    };
    chosen.push_back(sum("chosen"));
    rejected.push_back(sum("rejected"));
    reference_chosen.push_back(sum("reference_chosen"));
    reference_rejected.push_back(sum("reference_rejected"));
    margins.push_back(pair.value("margin", 0.0));
    nll.push_back(-Sum(pair["chosen"]));
    chosen_tokens.push_back(tokens("chosen"));
    rejected_tokens.push_back(tokens("rejected"));
  }
};

// The gradient of the mean loss by the log-prob of each token of a completion.
json TokenGradient(double slope, double nll_slope, int64_t tokens, int64_t shorter, double ld_alpha,
                   size_t num_pairs) {
  json gradient = json::array();
  for (int64_t t = 0; t < tokens; ++t) {
    gradient.push_back((slope * TokenWeight(t, shorter, ld_alpha) - nll_slope) /
                       static_cast<double>(num_pairs));
  }
  return gradient;
}

absl::StatusOr<json> Pairs(const json& input) {
  TANDEM_ASSIGN_OR_RETURN(const auto options, ReadOptions<PreferenceLossOptions>(input));
  PairColumns columns;
  for (const json& pair : input["pairs"]) columns.Add(pair, options.ld_alpha);
  const PreferenceLoss loss = ComputePreferenceLoss(
      {columns.chosen, columns.rejected, columns.reference_chosen, columns.reference_rejected,
       columns.chosen_tokens, columns.rejected_tokens, columns.margins, columns.nll,
       columns.chosen_tokens},
      options);
  const PreferenceMetrics metrics = SummarisePreferences(loss);
  json out = {{"loss", metrics.loss},
              {"values", loss.value},
              {"chosen_reward", metrics.chosen_reward},
              {"rejected_reward", metrics.rejected_reward},
              {"margin", metrics.margin},
              {"accuracy", metrics.accuracy}};
  for (size_t i = 0; i < loss.value.size(); ++i) {
    const int64_t shorter = std::min(columns.chosen_tokens[i], columns.rejected_tokens[i]);
    out["chosen_gradient"].push_back(TokenGradient(loss.chosen_slope[i], loss.nll_slope[i],
                                                   columns.chosen_tokens[i], shorter,
                                                   options.ld_alpha, loss.value.size()));
    out["rejected_gradient"].push_back(TokenGradient(loss.rejected_slope[i], 0,
                                                     columns.rejected_tokens[i], shorter,
                                                     options.ld_alpha, loss.value.size()));
  }
  return out;
}

absl::StatusOr<json> Kto(const json& input) {
  TANDEM_ASSIGN_OR_RETURN(const auto options, ReadOptions<PreferenceLossOptions>(input));
  Numbers logprobs, reference;
  std::vector<uint8_t> desirable;
  for (const json& completion : input["completions"]) {
    logprobs.push_back(Sum(completion["logprobs"]));
    reference.push_back(Sum(completion["reference"]));
    desirable.push_back(completion["desirable"].get<bool>());
  }
  double log_ratio_sum = 0;
  for (const json& mismatched : input["mismatched"]) {
    log_ratio_sum += Sum(mismatched["logprobs"]) - Sum(mismatched["reference"]);
  }
  const double point =
      KtoReferencePoint(log_ratio_sum, static_cast<int64_t>(input["mismatched"].size()));
  const KtoLoss loss = ComputeKtoLoss({logprobs, reference, desirable}, point, options);
  const auto count = static_cast<double>(loss.value.size());
  json out = {
      {"loss", Sum(loss.value) / count}, {"reference_point", point}, {"reward", loss.reward}};
  for (size_t i = 0; i < loss.slope.size(); ++i) {
    out["gradient"].push_back(
        Numbers(input["completions"][i]["logprobs"].size(), loss.slope[i] / count));
  }
  return out;
}

absl::StatusOr<json> Reward(const json& input) {
  TANDEM_ASSIGN_OR_RETURN(const auto options, ReadOptions<RewardModelLossOptions>(input));
  const auto chosen = input["chosen"].get<Numbers>(), rejected = input["rejected"].get<Numbers>(),
             margins = input["margins"].get<Numbers>();
  RewardModelLoss loss = ComputeRewardModelLoss({chosen, rejected, margins}, options);
  const auto count = static_cast<double>(chosen.size());
  for (double& slope : loss.chosen_slope) slope /= count;
  for (double& slope : loss.rejected_slope) slope /= count;
  return json{{"loss", Sum(loss.value) / count},
              {"chosen_gradient", loss.chosen_slope},
              {"rejected_gradient", loss.rejected_slope}};
}

absl::StatusOr<json> Data(const json& input) {
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(input["tokenizer"]));
  TANDEM_ASSIGN_OR_RETURN(const PreferenceData data,
                          ReadPreferenceData(input["path"], {}, *tokenizer, /*end_token=*/2, 4096));
  json out = json::array();
  for (const PreferencePair& pair : data.pairs) {
    out.push_back({pair.prompt, pair.chosen, pair.rejected, pair.margin.value_or(0)});
  }
  return out;
}

absl::StatusOr<json> Rows(const json& input) {
  const DatasetPart part = {.split = input.value("split", ""), .subset = input.value("subset", "")};
  TANDEM_ASSIGN_OR_RETURN(const auto rows, RowReader::Open(input["path"], part));
  json out = json::array();
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<TableRow> row, rows->Next());
    if (!row.has_value()) return out;
    out.push_back(json::parse(row->json));
  }
}

absl::StatusOr<json> Evaluate(const json& input) {
  if (input["kind"] == "data") return Data(input);
  if (input["kind"] == "rows") return Rows(input);
  if (input["kind"] == "kto") return Kto(input);
  return input["kind"] == "reward" ? Reward(input) : Pairs(input);
}

}  // namespace
}  // namespace tandem::trainer

int main() {
  const auto output = tandem::trainer::Evaluate(nlohmann::json::parse(std::cin));
  if (output.ok()) {
    std::cout << output->dump() << "\n";
    return 0;
  }
  std::fprintf(stderr, "%s\n", output.status().ToString().c_str());
  return 1;
}
