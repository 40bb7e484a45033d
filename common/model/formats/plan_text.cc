#include "common/model/formats/plan_text.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

std::string FormatText(const WeightFormat& format) {
  if (format.scheme == WeightScheme::kWide) return "dtype";
  const std::string name(WeightSchemeName(format.scheme));
  return format.scheme == WeightScheme::kInt4Group ? absl::StrCat(name, " of ", format.group)
                                                   : name;
}

std::string LayerText(const LayerFormats& layer) {
  if (std::ranges::all_of(layer.sites, [&](const auto& one) { return one == layer.sites[0]; })) {
    return FormatText(layer.sites[0]);
  }
  std::vector<std::string> sites;
  for (size_t site = 0; site < kNumSites; ++site) {
    sites.push_back(
        absl::StrCat(std::string(kSiteNames[site]), " ", FormatText(layer.sites[site])));
  }
  return absl::StrJoin(sites, ", ");
}

}  // namespace

std::string PlanText(const QuantisationPlan& plan) {
  constexpr std::string_view kKvTexts[] = {"", "; kv: int8", "; kv: fp8_e4m3"};
  const std::string kv(kKvTexts[static_cast<size_t>(plan.kv)]);
  if (!plan.quantises()) return "dtype" + kv;
  constexpr std::string_view kActivationNames[] = {"auto", "dtype", "int8"};
  std::vector<std::string> runs;
  for (size_t first = 0; first < plan.layers.size();) {
    size_t last = first;
    while (last + 1 < plan.layers.size() && plan.layers[last + 1] == plan.layers[first]) ++last;
    runs.push_back(absl::StrCat(first, "-", last, ": ", LayerText(plan.layers[first])));
    first = last + 1;
  }
  return absl::StrCat(
      "layers ", absl::StrJoin(runs, ", "), "; head: ", FormatText(plan.head),
      "; activations: ", std::string(kActivationNames[static_cast<size_t>(plan.activations)]), kv);
}

namespace {

constexpr char kWideText[] = "dtype";

absl::Status NoPlan(std::string_view part) {
  return InvalidArgument("'", std::string(part), "' is no part of the text of a quantisation plan");
}

// A format's text as a value of by_layer; takes the group of int4_group.
absl::StatusOr<std::string> TakeFormat(const std::string& text, QuantisationOptions& options) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(" of ", 1));
  const bool is_known =
      parts.first == kWideText ||
      (parts.first != kWeightSchemeNames[0] &&
       std::ranges::find(kWeightSchemeNames, parts.first) != std::end(kWeightSchemeNames));
  if (!is_known || (!parts.second.empty() && !absl::SimpleAtoi(parts.second, &options.group))) {
    return NoPlan(text);
  }
  return parts.first;
}

// "0-2: int8" begins with its layers; a site that follows belongs to the same ones.
absl::Status TakeLayers(const std::string& text, QuantisationOptions& options) {
  std::string layers;
  const std::vector<std::string> parts = absl::StrSplit(text, ", ");
  for (const std::string& part : parts) {
    std::string rest = part;
    if (const size_t colon = part.find(": "); colon != std::string::npos) {
      layers = part.substr(0, colon);
      rest = part.substr(colon + 2);
    }
    if (layers.empty()) return NoPlan(part);
    std::string place = layers;
    for (const std::string_view site : kSiteNames) {
      if (!rest.starts_with(absl::StrCat(std::string(site), " "))) continue;
      absl::StrAppend(&place, ".", std::string(site));
      rest = rest.substr(site.size() + 1);
      break;
    }
    TANDEM_ASSIGN_OR_RETURN(std::string format, TakeFormat(rest, options));
    options.by_layer.emplace_back(std::move(place), std::move(format));
  }
  return absl::OkStatus();
}

template <typename T, size_t N>
absl::StatusOr<T> Named(const std::string& text, const std::pair<std::string_view, T> (&names)[N]) {
  for (const auto& [name, value] : names) {
    if (name == text) return value;
  }
  return NoPlan(text);
}

}  // namespace

absl::StatusOr<QuantisationOptions> OptionsOfPlan(const std::string& text) {
  static constexpr std::pair<std::string_view, KvFormat> kKv[] = {{"int8", KvFormat::kInt8},
                                                                  {"fp8_e4m3", KvFormat::kFp8E4m3}};
  static constexpr std::pair<std::string_view, Activations> kActivations[] = {
      {"auto", Activations::kAuto}, {"dtype", Activations::kDtype}, {"int8", Activations::kInt8}};
  QuantisationOptions options;
  if (text.empty()) return options;
  const std::vector<std::string> parts = absl::StrSplit(text, "; ");
  for (const std::string& part : parts) {
    absl::string_view rest = part;
    if (part == kWideText) continue;
    if (absl::ConsumePrefix(&rest, "layers ")) {
      TANDEM_RETURN_IF_ERROR(TakeLayers(std::string(rest), options));
    } else if (absl::ConsumePrefix(&rest, "head: ")) {
      TANDEM_ASSIGN_OR_RETURN(std::string format, TakeFormat(std::string(rest), options));
      options.by_layer.emplace_back("head", std::move(format));
    } else if (absl::ConsumePrefix(&rest, "activations: ")) {
      TANDEM_ASSIGN_OR_RETURN(options.activations, Named(std::string(rest), kActivations));
    } else if (absl::ConsumePrefix(&rest, "kv: ")) {
      TANDEM_ASSIGN_OR_RETURN(options.kv, Named(std::string(rest), kKv));
    } else {
      return NoPlan(part);
    }
  }
  return options;
}

}  // namespace tandem
