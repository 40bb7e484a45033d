// QuantisationPlan: which number format every matrix of the model, and the KV cache, is held in, made
// from the options that a run file gives to the rollout server (`server.engine`) or to a trainer that
// imitates it (`trainer.fake_quantise`). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/matrix/weight_format.h"
#include "common/model/model_config.h"

namespace tandem {

class OptionBinder;

// How the inputs of a quantised matrix are multiplied.
enum class Activations {
  kAuto,   // int8 for int8 weights, else as kDtype
  kDtype,  // in the dtype of the engine (weight-only quantisation)
  kInt8,   // quantised to int8, each token with a scale of its own, also for int4 weights; the
           // head's to 16 bits
};

// Are the inputs of a matrix of this format quantised?
bool Int8Rows(Activations activations, const WeightFormat& format);

// How keys and values are held: in the dtype of the engine, or in a byte each with an fp32 scale for
// each token and head (QuantiseInt8, QuantiseE4m3), after norm and rotary embedding.
enum class KvFormat { kDtype, kInt8, kFp8E4m3 };

struct QuantisationOptions {
  WeightScheme weights = WeightScheme::kWide;
  int64_t group = 32;
  Activations activations = Activations::kAuto;
  bool head = true;  // quantise head and embedding too: to fp8 beside fp8 layers, else to int8
  // Exceptions, the later ones first: "3" or "0-4" (layers), "down_proj" (a site in all layers),
  // "3.down_proj", "0-4.o_proj" or "head" -> a scheme's name, or "dtype".
  std::vector<std::pair<std::string, std::string>> by_layer;
  KvFormat kv = KvFormat::kDtype;

  friend bool operator==(const QuantisationOptions&, const QuantisationOptions&) = default;
};
void BindOptions(OptionBinder& binder, QuantisationOptions& options);

// The matrices of a layer as the engine has them: projections that read the same input are one.
enum class Site { kQkv, kO, kGateUp, kDown };
inline constexpr size_t kNumSites = 4;
inline constexpr std::string_view kSiteNames[kNumSites] = {"qkv_proj", "o_proj", "gate_up_proj",
                                                           "down_proj"};

struct LayerFormats {
  WeightFormat sites[kNumSites];

  const WeightFormat& at(Site site) const { return sites[static_cast<size_t>(site)]; }
  friend bool operator==(const LayerFormats&, const LayerFormats&) = default;
};

struct QuantisationPlan {
  std::vector<LayerFormats> layers;  // of every layer of the model
  WeightFormat head;                 // of the head and the embedding
  Activations activations = Activations::kAuto;
  KvFormat kv = KvFormat::kDtype;

  // Is any matrix quantised?
  bool quantises() const;
  bool int8_rows(const WeightFormat& format) const { return Int8Rows(activations, format); }
  friend bool operator==(const QuantisationPlan&, const QuantisationPlan&) = default;
};

// The input features of a site's matrix.
int64_t DepthOf(const ModelConfig& config, Site site);

//   INVALID_ARGUMENT  a key or a value of by_layer that is none, or a layer that the model does not
//                     have; activations int8 where nothing has int8 or int4 weights; a matrix whose
//                     inputs int4_group does not take (PackedMatrix::CanPack)
absl::StatusOr<QuantisationPlan> MakeQuantisationPlan(const ModelConfig& config,
                                                      const QuantisationOptions& options);

}  // namespace tandem
