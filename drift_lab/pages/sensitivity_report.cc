#include "drift_lab/pages/sensitivity_report.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "drift_lab/pages/report_parts.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

constexpr size_t kDearest = 10;  // places that are listed with intervals

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

// The places by k3, the largest first.
std::vector<size_t> ByCost(const Sensitivity& sensitivity) {
  std::vector<size_t> order(sensitivity.places.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return sensitivity.places[a].cost.k3.value > sensitivity.places[b].cost.k3.value;
  });
  return order;
}

const PlaceSensitivity* Find(const Sensitivity& sensitivity, const std::string& name) {
  const auto found = std::ranges::find(sensitivity.places, name, &PlaceSensitivity::place);
  return found == sensitivity.places.end() ? nullptr : &*found;
}

std::string LayerRows(const Sensitivity& sensitivity) {
  std::string out = absl::StrFormat("%-8s", "layer");
  for (const std::string_view site : kSiteNames) {
    absl::StrAppendFormat(&out, " %12s", std::string(site));
  }
  std::array<double, kNumSites> sums = {};
  for (int64_t layer = 0; layer < sensitivity.num_layers; ++layer) {
    absl::StrAppendFormat(&out, "\n%-8d", static_cast<int>(layer));
    for (size_t site = 0; site < kNumSites; ++site) {
      const auto* const place =
          Find(sensitivity, absl::StrCat(layer, ".", std::string(kSiteNames[site])));
      absl::StrAppendFormat(&out, " %12s",
                            place == nullptr ? "-" : NumberText(place->cost.k3.value));
      if (place != nullptr) sums[site] += place->cost.k3.value;
    }
  }
  absl::StrAppendFormat(&out, "\n%-8s", "sum");
  for (const double sum : sums) absl::StrAppendFormat(&out, " %12s", NumberText(sum));
  const PlaceSensitivity* const head = Find(sensitivity, "head");
  if (head != nullptr) {
    absl::StrAppendFormat(&out, "\n%-8s %12s", "head", NumberText(head->cost.k3.value));
  }
  return out + "\n";
}

}  // namespace

std::string PlanYaml(const Sensitivity& sensitivity, const QuantisationOptions& whole) {
  if (!sensitivity.plan) return "";
  const std::set<size_t> chosen(sensitivity.plan->quantised.begin(),
                                sensitivity.plan->quantised.end());
  const bool names_quantised = chosen.size() * 2 < sensitivity.places.size();
  std::vector<std::string> exceptions;
  for (size_t i = 0; i < sensitivity.places.size(); ++i) {
    if (chosen.contains(i) != names_quantised) continue;
    const PlaceSensitivity& place = sensitivity.places[i];
    exceptions.push_back(absl::StrCat(
        place.place, ": ",
        names_quantised ? std::string(WeightSchemeName(place.format.scheme)) : "dtype"));
  }
  const std::string base = names_quantised ? "dtype" : std::string(WeightSchemeName(whole.weights));
  std::string out = absl::StrCat("server:\n  engine:\n    weights: ", base, "\n");
  if (whole.group != 32) absl::StrAppend(&out, "    weights_group: ", whole.group, "\n");
  if (!whole.head) absl::StrAppend(&out, "    quantise_head: false\n");
  // Exceptions of the study itself come first: later ones take precedence.
  std::vector<std::string> all;
  if (!names_quantised) {
    for (const auto& [place, format] : whole.by_layer) {
      all.push_back(absl::StrCat(place, ": ", format));
    }
  }
  all.insert(all.end(), exceptions.begin(), exceptions.end());
  if (!all.empty()) {
    absl::StrAppend(&out, "    weights_by_layer:\n      ", absl::StrJoin(all, "\n      "), "\n");
  }
  return out;
}

std::string SensitivityTable(const Sensitivity& sensitivity, const QuantisationOptions& whole) {
  std::string out = absl::StrFormat(
      "%d sampled tokens of %d sequences; k3 in nats, of the engine that quantises one matrix "
      "(behaviour)\nagainst the one that quantises none\n\n",
      sensitivity.num_tokens, sensitivity.num_sequences);
  absl::StrAppend(&out, LayerRows(sensitivity), "\n");
  absl::StrAppendFormat(&out, "%-18s %-10s %-26s %-26s %s\n", "dearest", "format", "k3",
                        "mean |log w|", "saves");
  const std::vector<size_t> order = ByCost(sensitivity);
  for (size_t i = 0; i < std::min(kDearest, order.size()); ++i) {
    const PlaceSensitivity& place = sensitivity.places[order[i]];
    absl::StrAppendFormat(&out, "%-18s %-10s %-26s %-26s %s\n", place.place,
                          std::string(WeightSchemeName(place.format.scheme)),
                          WithBounds(place.cost.k3), WithBounds(place.cost.mean_abs),
                          Mebibytes(place.saved_bytes));
  }
  double sum = 0;
  for (const PlaceSensitivity& place : sensitivity.places) sum += place.cost.k3.value;
  absl::StrAppendFormat(
      &out, "\neverything: k3 %s (sum of the parts %s), mean |log w| %s, weights %s of %s\n",
      WithBounds(sensitivity.whole.k3), NumberText(sum), WithBounds(sensitivity.whole.mean_abs),
      Mebibytes(sensitivity.whole_bytes), Mebibytes(sensitivity.wide_bytes));
  if (!sensitivity.plan) return out;
  const MixedPlan& plan = *sensitivity.plan;
  absl::StrAppendFormat(
      &out,
      "\nplan: %d of %d matrices quantised, measured k3 %s (sum of the parts %s), weights %s, "
      "%d measurements\n\n%s",
      plan.quantised.size(), sensitivity.places.size(), NumberText(plan.measured_k3),
      NumberText(plan.estimated_k3), Mebibytes(sensitivity.wide_bytes - plan.saved_bytes),
      plan.num_measurements, PlanYaml(sensitivity, whole));
  return out;
}

std::string SensitivityJson(const Sensitivity& sensitivity, const QuantisationOptions& whole) {
  nlohmann::ordered_json out = {{"format", "tandem_sensitivity_1"},
                                {"weights", sensitivity.plan_text},
                                {"num_tokens", sensitivity.num_tokens},
                                {"num_sequences", sensitivity.num_sequences},
                                {"wide_bytes", sensitivity.wide_bytes},
                                {"whole",
                                 {{"k3", ToJson(sensitivity.whole.k3)},
                                  {"mean_abs", ToJson(sensitivity.whole.mean_abs)},
                                  {"bytes", sensitivity.whole_bytes}}}};
  out["places"] = nlohmann::ordered_json::array();
  for (const PlaceSensitivity& place : sensitivity.places) {
    out["places"].push_back({{"place", place.place},
                             {"format", WeightSchemeName(place.format.scheme)},
                             {"k3", ToJson(place.cost.k3)},
                             {"mean_abs", ToJson(place.cost.mean_abs)},
                             {"saved_bytes", place.saved_bytes}});
  }
  if (sensitivity.plan) {
    std::vector<std::string> names;
    for (const size_t i : sensitivity.plan->quantised) {
      names.push_back(sensitivity.places[i].place);
    }
    out["plan"] = {{"quantised", names},
                   {"measured_k3", Number(sensitivity.plan->measured_k3)},
                   {"estimated_k3", Number(sensitivity.plan->estimated_k3)},
                   {"bytes", sensitivity.wide_bytes - sensitivity.plan->saved_bytes},
                   {"num_measurements", sensitivity.plan->num_measurements},
                   {"run_file", PlanYaml(sensitivity, whole)}};
  }
  return out.dump(1) + "\n";
}

}  // namespace tandem::drift
