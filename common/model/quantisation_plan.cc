#include "common/model/quantisation_plan.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/matrix/packed_matrix.h"
#include "common/options/options.h"

namespace tandem {
namespace {

constexpr std::string_view kHead = "head";

const std::vector<std::pair<std::string, WeightScheme>>& Schemes() {
  static const std::vector<std::pair<std::string, WeightScheme>> schemes = {
      {"dtype", WeightScheme::kWide},
      {"int8", WeightScheme::kInt8},
      {"fp8_e4m3", WeightScheme::kFp8E4m3},
      {"int4_group", WeightScheme::kInt4Group}};
  return schemes;
}

// Where a key of by_layer applies.
struct Place {
  bool head = false;
  int64_t first = 0, last = 0;  // layers
  std::optional<Site> site;     // none: all
};

std::optional<Site> SiteNamed(std::string_view name) {
  const auto found = std::ranges::find(kSiteNames, name);
  if (found == std::end(kSiteNames)) return std::nullopt;
  return static_cast<Site>(found - kSiteNames);
}

bool ParseLayers(const std::string& text, Place* place) {
  const std::vector<std::string> ends = absl::StrSplit(text, '-');
  if (ends.empty() || ends.size() > 2) return false;
  return absl::SimpleAtoi(ends.front(), &place->first) &&
         absl::SimpleAtoi(ends.back(), &place->last);
}

absl::StatusOr<Place> ParsePlace(const std::string& key, int64_t num_layers) {
  Place place = {.last = num_layers - 1};
  if (key == kHead) {
    place.head = true;
    return place;
  }
  const std::vector<std::string> parts = absl::StrSplit(key, '.');
  place.site = SiteNamed(parts.back());
  const bool names_layers = parts.size() == 2 || !place.site;
  const bool well_formed = parts.size() <= 2 && (parts.size() == 1 || place.site) &&
                           (!names_layers || ParseLayers(parts.front(), &place));
  if (!well_formed) {
    return InvalidArgument(
        "weights_by_layer: '", key,
        "' names no place; want a layer (3), layers (0-4), qkv_proj, o_proj, "
        "gate_up_proj, down_proj, a layer's site (3.down_proj) or head. "
        "Projections of one input are one matrix: qkv_proj is q_proj, k_proj and "
        "v_proj");
  }
  if (place.first < 0 || place.first > place.last || place.last >= num_layers) {
    return InvalidArgument("weights_by_layer: '", key, "', the model has the layers 0 to ",
                           num_layers - 1);
  }
  return place;
}

absl::StatusOr<WeightScheme> ParseScheme(const std::string& key, const std::string& value) {
  for (const auto& [name, scheme] : Schemes()) {
    if (name == value) return scheme;
  }
  return InvalidArgument("weights_by_layer: ", key, " is '", value,
                         "', want dtype, int8, fp8_e4m3 or int4_group");
}

absl::Status CheckDepths(const ModelConfig& config, const QuantisationPlan& plan) {
  for (size_t layer = 0; layer < plan.layers.size(); ++layer) {
    for (size_t site = 0; site < kNumSites; ++site) {
      const WeightFormat& format = plan.layers[layer].sites[site];
      const int64_t depth = DepthOf(config, static_cast<Site>(site));
      if (PackedMatrix::CanPack(format.scheme, depth)) continue;
      return InvalidArgument("weights ", WeightSchemeName(format.scheme), ": ", kSiteNames[site],
                             " of layer ", layer, " has ", depth,
                             " inputs; int4_group takes multiples of 8, and all schemes at most "
                             "65536. Leave it out by weights_by_layer: {",
                             kSiteNames[site], ": dtype}");
    }
  }
  return absl::OkStatus();
}

}  // namespace

void BindOptions(OptionBinder& binder, QuantisationOptions& options) {
  binder.Choice<WeightScheme>(
      "weights", &options.weights, Schemes(),
      "number format of the matrices: dtype as it says; int8 and fp8_e4m3 with a scale per output, "
      "int4_group with a scale per weights_group inputs (docs/quantised_rollouts.md)");
  binder.Choice<int64_t>("weights_group", &options.group, {{"32", 32}, {"64", 64}, {"128", 128}},
                         "inputs that share a scale of int4_group");
  binder.Choice<Activations>(
      "activations", &options.activations,
      {{"auto", Activations::kAuto}, {"dtype", Activations::kDtype}, {"int8", Activations::kInt8}},
      "inputs of quantised matrices: as dtype says, or int8 with a scale per token; auto: int8 for "
      "int8 weights, else dtype");
  binder.Flag("quantise_head", &options.head,
              "quantise head and embedding too (fp8_e4m3 beside it, else int8)");
  binder.TextMap(
      "weights_by_layer", &options.by_layer,
      "exceptions, later ones first: a layer (3), layers (0-4), a site (qkv_proj, o_proj, "
      "gate_up_proj, down_proj), 3.down_proj, or head: a format");
  binder.Choice<KvFormat>(
      "kv", &options.kv,
      {{"dtype", KvFormat::kDtype}, {"int8", KvFormat::kInt8}, {"fp8_e4m3", KvFormat::kFp8E4m3}},
      "KV cache: in dtype, or in a byte each with a scale per token and head");
}

bool QuantisationPlan::quantises() const {
  const auto is_quantised = [](const WeightFormat& format) {
    return format.scheme != WeightScheme::kWide;
  };
  return is_quantised(head) || std::ranges::any_of(layers, [&](const LayerFormats& layer) {
           return std::ranges::any_of(layer.sites, is_quantised);
         });
}

bool Int8Rows(Activations activations, const WeightFormat& format) {
  if (format.scheme == WeightScheme::kInt8) return activations != Activations::kDtype;
  return format.scheme == WeightScheme::kInt4Group && activations == Activations::kInt8;
}

int64_t DepthOf(const ModelConfig& config, Site site) {
  switch (site) {
    case Site::kQkv:
    case Site::kGateUp:
      return config.hidden_size;
    case Site::kO:
      return config.num_heads * config.head_dim;
    case Site::kDown:
      return config.intermediate_size;
  }
  return 0;
}

absl::StatusOr<QuantisationPlan> MakeQuantisationPlan(const ModelConfig& config,
                                                      const QuantisationOptions& options) {
  const auto format = [&](WeightScheme scheme) {
    // Groups are of int4 alone, so that equal formats compare equal.
    return WeightFormat{scheme, scheme == WeightScheme::kInt4Group ? options.group : 32};
  };
  QuantisationPlan plan;
  plan.activations = options.activations;
  plan.kv = options.kv;
  LayerFormats everywhere;
  std::ranges::fill(everywhere.sites, format(options.weights));
  plan.layers.assign(static_cast<size_t>(config.num_layers), everywhere);
  if (options.head && options.weights != WeightScheme::kWide) {
    const bool fp8 = options.weights == WeightScheme::kFp8E4m3;
    plan.head = format(fp8 ? WeightScheme::kFp8E4m3 : WeightScheme::kInt8);
  }
  for (const auto& [key, value] : options.by_layer) {
    TANDEM_ASSIGN_OR_RETURN(const Place place, ParsePlace(key, config.num_layers));
    TANDEM_ASSIGN_OR_RETURN(const WeightScheme scheme, ParseScheme(key, value));
    if (place.head) {
      plan.head = format(scheme);
      continue;
    }
    for (int64_t layer = place.first; layer <= place.last; ++layer) {
      for (size_t site = 0; site < kNumSites; ++site) {
        if (place.site && static_cast<size_t>(*place.site) != site) continue;
        plan.layers[static_cast<size_t>(layer)].sites[site] = format(scheme);
      }
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckDepths(config, plan));
  if (!PackedMatrix::CanPack(plan.head.scheme, config.hidden_size)) {
    return InvalidArgument(
        "weights_by_layer: head is int4_group, which takes inputs in multiples "
        "of 8; the model has ",
        config.hidden_size);
  }
  const bool any_int8 = std::ranges::any_of(plan.layers, [&](const LayerFormats& layer) {
    return std::ranges::any_of(layer.sites,
                               [&](const WeightFormat& one) { return plan.int8_rows(one); });
  });
  if (options.activations == Activations::kInt8 && !any_int8) {
    return InvalidArgument(
        "activations: int8 needs weights that are multiplied as integers: set "
        "weights to int8 or int4_group");
  }
  return plan;
}

}  // namespace tandem
