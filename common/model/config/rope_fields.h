// Reads RopeSettings from a config.json, in the spelling of transformers 4 (rope_theta,
// rope_scaling) and of transformers 5 (rope_parameters), and writes them in the former. Used by
// model_config.cc and model_config_json.cc.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/model/config/config_fields.h"
#include "common/model/rope.h"
#include "nlohmann/json.hpp"

namespace tandem {

// What a family and its config.json say about the embedding when the fields are absent.
struct RopeDefaults {
  double theta = 10000;
  double partial_rotary_factor = 1;
};

// Reads "rope_parameters", or "rope_theta" and "rope_scaling". `origin` opens messages of the
// object's fields. `max_position_embeddings` is lowered to the context that longrope's short
// factors are for.
//   UNIMPLEMENTED     another rope_type, or settings by layer type (named)
//   INVALID_ARGUMENT  a field is missing, of the wrong type or out of range (named)
absl::Status ReadRopeSettings(ConfigFields& fields, const std::string& origin, int64_t head_dim,
                              const RopeDefaults& defaults, int64_t& max_position_embeddings,
                              RopeSettings& settings);

// Reads one object of rope settings, such as "rope_scaling" or one layer type's of
// "rope_parameters". `fields` are those of config.json. Errors: ReadRopeSettings.
absl::Status ReadRopeObject(ConfigFields& fields, const ConfigFields::Json& object,
                            const std::string& where, int64_t head_dim,
                            int64_t& max_position_embeddings, RopeSettings& settings);

// The "rope_scaling" object of transformers 4; null where there is no scaling.
nlohmann::ordered_json RopeScalingJson(const RopeSettings& settings);

}  // namespace tandem
