#include "cli/supervised/reward_report.h"

#include <cmath>
#include <sstream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "cli/report/report.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "nlohmann/json.hpp"
#include "trainer/preferences/reward_statistics.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;
using trainer::PairCalibration;

constexpr int64_t kBins = 10;

// Numbers that are not finite become null.
ordered_json JsonOf(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json JsonOf(const PairCalibration& calibration) {
  ordered_json bins = ordered_json::array();
  for (const trainer::ReliabilityBin& bin : calibration.bins) {
    bins.push_back({{"low", bin.low},
                    {"high", bin.high},
                    {"num", bin.num_pairs},
                    {"confidence", bin.confidence},
                    {"accuracy", bin.accuracy}});
  }
  return {{"num", calibration.num_pairs},
          {"num_ties", calibration.num_ties},
          {"accuracy", calibration.accuracy},
          {"expected_calibration_error", calibration.expected_calibration_error},
          {"brier_score", calibration.brier_score},
          {"bins", bins}};
}

ordered_json Header(const RewardReport& report) {
  return {{"schema", 1},
          {"kind", report.kind},
          {"num_heads", report.num_heads},
          {"num_trained", report.num_trained},
          {"num_updates", report.num_updates},
          {"held_out_loss", JsonOf(report.held_out_loss)}};
}

// The lines of metrics.jsonl for the curves of the page.
absl::StatusOr<ordered_json> ReadCurves(const std::string& out) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(out + "/metrics.jsonl"));
  ordered_json lines = ordered_json::array();
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    auto parsed = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) lines.push_back(std::move(parsed));
  }
  return lines;
}

absl::Status WriteFiles(const std::string& out, const std::string& name, ordered_json numbers) {
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(out + "/reward_model.json", numbers.dump(1) + "\n"));
  TANDEM_ASSIGN_OR_RETURN(numbers["curves"], ReadCurves(out));
  return WriteFileAtomically(out + "/reward_model.html",
                             report::RewardModelHtml(name, numbers.dump()));
}

// Rewards of one head, or of the mean over all of them (head = -1), of one side of the pairs.
std::vector<double> Side(std::span<const float> scores, size_t num_pairs, int64_t num_heads,
                         size_t side, int64_t head) {
  std::vector<double> rewards;
  const auto k = static_cast<size_t>(num_heads);
  for (size_t i = 0; i < num_pairs; ++i) {
    const std::span<const float> own = scores.subspan((2 * i + side) * k, k);
    double sum = 0;
    for (const float score : own) sum += score;
    rewards.push_back(head < 0 ? sum / static_cast<double>(k) : own[static_cast<size_t>(head)]);
  }
  return rewards;
}

std::string Text(const PairCalibration& calibration, const char* what) {
  return absl::StrFormat(
      "held out: %d %s, accuracy %.4f, expected calibration error %.4f, Brier "
      "score %.4f\n",
      calibration.num_pairs, what, calibration.accuracy, calibration.expected_calibration_error,
      calibration.brier_score);
}

}  // namespace

absl::StatusOr<std::string> WriteRewardReport(const std::string& out, const RewardReport& report,
                                              const std::vector<trainer::PreferencePair>& pairs,
                                              std::span<const float> scores) {
  const auto side = [&](size_t which, int64_t head) {
    return Side(scores, pairs.size(), report.num_heads, which, head);
  };
  const std::vector<double> chosen = side(0, -1), rejected = side(1, -1);
  std::vector<int64_t> chosen_tokens, rejected_tokens;
  for (const trainer::PreferencePair& pair : pairs) {
    chosen_tokens.push_back(static_cast<int64_t>(pair.chosen.size()));
    rejected_tokens.push_back(static_cast<int64_t>(pair.rejected.size()));
  }
  const trainer::JudgedPairs judged = {chosen, rejected};
  const PairCalibration calibration = trainer::MeasureCalibration(judged, kBins);
  const trainer::LengthBias bias = trainer::FitLengthBias(judged, chosen_tokens, rejected_tokens);
  ordered_json numbers = Header(report);
  numbers["held_out"] = JsonOf(calibration);
  numbers["length_bias"] = {{"slope", JsonOf(bias.slope)},
                            {"standard_error", JsonOf(bias.standard_error)},
                            {"correlation", JsonOf(bias.correlation)}};
  numbers["accuracy_of_heads"] = ordered_json::array();
  for (int64_t head = 0; head < report.num_heads; ++head) {
    const std::vector<double> own_chosen = side(0, head), own_rejected = side(1, head);
    numbers["accuracy_of_heads"].push_back(
        trainer::MeasureCalibration({own_chosen, own_rejected}, kBins).accuracy);
  }
  TANDEM_RETURN_IF_ERROR(WriteFiles(out, report.name, std::move(numbers)));
  return Text(calibration, "pairs") +
         absl::StrFormat("length bias: %.4g reward per token, correlation %.3f\n", bias.slope,
                         bias.correlation);
}

absl::StatusOr<std::string> WriteStepReport(const std::string& out, const RewardReport& report,
                                            const std::vector<trainer::LabelledSteps>& rows,
                                            std::span<const float> scores) {
  std::vector<double> labels;
  for (const trainer::LabelledSteps& row : rows) {
    labels.insert(labels.end(), row.labels.begin(), row.labels.end());
  }
  // A step is a pair of its label's side and the other: sigmoid of the difference is the
  // probability of the label.
  std::vector<double> of_label;
  for (size_t i = 0; i < labels.size(); ++i) {
    of_label.push_back(labels[i] > 0.5 ? scores[i] : -scores[i]);
  }
  const std::vector<double> zeros(of_label.size(), 0);
  const PairCalibration calibration = trainer::MeasureCalibration({of_label, zeros}, kBins);
  ordered_json numbers = Header(report);
  numbers["held_out"] = JsonOf(calibration);
  TANDEM_RETURN_IF_ERROR(WriteFiles(out, report.name, std::move(numbers)));
  return Text(calibration, "steps");
}

}  // namespace tandem::cli
