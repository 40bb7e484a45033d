
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/bench_push.h"
#include "cli/bench/serve_load.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

std::vector<double> Of(const PushRow& row, double PushTimes::*field) {
  std::vector<double> values;
  for (const PushTimes& push : row.pushes) values.push_back(push.*field);
  return values;
}

const char* FormOf(const PushRow& row) { return row.is_delta ? "delta" : "dense"; }

std::string GapText(const std::vector<double>& gaps) {
  return absl::StrFormat("p50 %.0f ms, p99 %.0f ms, longest %.0f ms", Quantile(gaps, 0.5),
                         Quantile(gaps, 0.99), Quantile(gaps, 1));
}

}  // namespace

std::string ToText(const PushBenchResult& result) {
  std::string out = absl::StrFormat(
      "weights: %.1f MB, %.1f M parameters; loopback: %.2f GB/s through one TCP connection\n\n",
      static_cast<double>(result.dense_bytes) / 1e6,
      static_cast<double>(result.num_parameters) / 1e6, result.loopback_bytes_per_second / 1e9);
  absl::StrAppendFormat(&out, "%-7s %-10s %-5s %9s %17s %8s %8s %9s %8s %8s %7s %7s %9s %8s\n",
                        "servers", "transport", "form", "push s", "(least - most)", "wire MB",
                        "GB/s", "of loopb.", "s/1e9 p", "send s", "verify", "pack s", "pause ms",
                        "before s");
  for (const PushRow& row : result.rows) {
    const std::vector<double> seconds = Of(row, &PushTimes::seconds);
    const double median = Median(seconds);
    const double sent = Median(Of(row, &PushTimes::send_seconds));
    // The weights that all servers received, over the time of the push.
    const double rate = static_cast<double>(result.dense_bytes * row.servers) / median;
    const double wire = row.pushes.empty() ? 0 : static_cast<double>(row.pushes.back().wire_bytes);
    absl::StrAppendFormat(
        &out,
        "%-7d %-10s %-5s %9.3f %17s %8.1f %8.2f %7.0f %% %8.2f %8.3f %6.1f%% %7.3f %9.2f %8.3f\n",
        row.servers, row.transport, FormOf(row), median,
        absl::StrFormat("(%.3f - %.3f)", Quantile(seconds, 0), Quantile(seconds, 1)), wire / 1e6,
        rate / 1e9,
        100 * wire * static_cast<double>(row.servers) / sent / result.loopback_bytes_per_second,
        median * 1e9 / static_cast<double>(result.num_parameters), sent,
        100 * Median(Of(row, &PushTimes::verify_seconds)) / median,
        Median(Of(row, &PushTimes::pack_seconds)), 1e3 * Median(Of(row, &PushTimes::pause_seconds)),
        Median(Of(row, &PushTimes::prepare_seconds)));
  }
  if (result.quiet_gaps_ms.empty()) return out;
  absl::StrAppend(&out,
                  "\nthe longest time between two tokens of a completion, at the first server:\n",
                  "  without pushes: ", GapText(result.quiet_gaps_ms), "\n");
  for (const PushRow& row : result.rows) {
    absl::StrAppend(&out, "  ", row.servers, " ", row.transport, " ", FormOf(row),
                    " one push after the other: ", GapText(row.token_gaps_ms), "\n");
  }
  return out;
}

std::string ToJson(const PushBenchResult& result) {
  nlohmann::json out = {{"dense_bytes", result.dense_bytes},
                        {"num_parameters", result.num_parameters},
                        {"loopback_bytes_per_second", result.loopback_bytes_per_second},
                        {"rows", nlohmann::json::array()}};
  const auto spread = [](const std::vector<double>& values) {
    return nlohmann::json{
        {"median", Median(values)}, {"least", Quantile(values, 0)}, {"most", Quantile(values, 1)}};
  };
  const auto gaps = [](const std::vector<double>& values) {
    return nlohmann::json{{"p50", Quantile(values, 0.5)},
                          {"p99", Quantile(values, 0.99)},
                          {"most", Quantile(values, 1)}};
  };
  for (const PushRow& row : result.rows) {
    nlohmann::json one = {{"servers", row.servers},
                          {"transport", row.transport},
                          {"form", FormOf(row)},
                          {"wire_bytes", row.pushes.empty() ? 0 : row.pushes.back().wire_bytes},
                          {"push_seconds", spread(Of(row, &PushTimes::seconds))},
                          {"send_seconds", spread(Of(row, &PushTimes::send_seconds))},
                          {"verify_seconds", spread(Of(row, &PushTimes::verify_seconds))},
                          {"pack_seconds", spread(Of(row, &PushTimes::pack_seconds))},
                          {"pause_seconds", spread(Of(row, &PushTimes::pause_seconds))},
                          {"prepare_seconds", spread(Of(row, &PushTimes::prepare_seconds))}};
    if (!row.token_gaps_ms.empty()) one["longest_token_gap_ms"] = gaps(row.token_gaps_ms);
    out["rows"].push_back(std::move(one));
  }
  if (!result.quiet_gaps_ms.empty()) {
    out["longest_token_gap_ms_without_pushes"] = gaps(result.quiet_gaps_ms);
  }
  return out.dump(1) + "\n";
}

}  // namespace tandem::cli
