#include "common/model/config/rope_fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

struct RopeTypeName {
  std::string_view name;
  RopeType type;
};
constexpr std::array<RopeTypeName, 5> kRopeTypes = {{{"default", RopeType::kDefault},
                                                     {"linear", RopeType::kLinear},
                                                     {"llama3", RopeType::kLlama3},
                                                     {"yarn", RopeType::kYarn},
                                                     {"longrope", RopeType::kLongRope}}};

void ReadLlama3(ConfigFields& rope, RopeSettings& settings) {
  settings.factor = rope.Positive("factor", std::nullopt);
  settings.low_freq_factor = rope.Positive("low_freq_factor", std::nullopt);
  settings.high_freq_factor = rope.Positive("high_freq_factor", std::nullopt);
  if (settings.factor < 1) rope.Reject("factor ", settings.factor, " is below 1");
  if (settings.high_freq_factor <= settings.low_freq_factor) {
    rope.Reject("high_freq_factor ", settings.high_freq_factor, " is not above low_freq_factor ",
                settings.low_freq_factor);
  }
}

// Section 3.4 of the paper: 0.1 log(factor) + 1, where `mscale` scales the logarithm.
double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

void ReadYarn(ConfigFields& rope, int64_t max_position_embeddings, RopeSettings& settings) {
  const double stretched = static_cast<double>(max_position_embeddings) /
                           static_cast<double>(settings.original_max_position_embeddings);
  settings.factor = rope.Positive("factor", stretched);
  settings.beta_fast = rope.Positive("beta_fast", 32);
  settings.beta_slow = rope.Positive("beta_slow", 1);
  settings.truncate = rope.Flag("truncate", true);
  const bool scales = rope.Find("mscale") != nullptr && rope.Find("mscale_all_dim") != nullptr;
  const double fallback = scales
                              ? YarnScale(settings.factor, rope.Positive("mscale", 1)) /
                                    YarnScale(settings.factor, rope.Positive("mscale_all_dim", 1))
                              : YarnScale(settings.factor, 1);
  settings.attention_factor = rope.Positive("attention_factor", fallback);
}

std::vector<double> ReadFactors(ConfigFields& rope, const char* key, int64_t count) {
  std::vector<double> factors;
  const Json* const value = rope.Find(key);
  bool fits = value != nullptr && value->is_array() && value->size() == static_cast<size_t>(count);
  for (size_t i = 0; fits && i < value->size(); ++i) {
    fits = (*value)[i].is_number() && (*value)[i].get<double>() > 0;
    if (fits) factors.push_back((*value)[i].get<double>());
  }
  if (!fits) rope.Reject(key, " needs a list of ", count, " numbers above 0");
  return factors;
}

// The long factors are for contexts beyond the original one, where they change the angles of all
// positions, also of those whose keys are cached. So the context ends where they would begin.
void ReadLongRope(ConfigFields& rope, int64_t head_dim, int64_t& max_position_embeddings,
                  RopeSettings& settings) {
  const int64_t pairs = RotatedElements(settings, head_dim) / 2;
  settings.short_factor = ReadFactors(rope, "short_factor", pairs);
  settings.long_factor = ReadFactors(rope, "long_factor", pairs);
  const auto original = static_cast<double>(settings.original_max_position_embeddings);
  settings.factor =
      rope.Positive("factor", static_cast<double>(max_position_embeddings) / original);
  settings.attention_factor = rope.Positive(
      "attention_factor",
      settings.factor <= 1 ? 1 : std::sqrt(1 + std::log(settings.factor) / std::log(original)));
  settings.stated_max_position_embeddings = max_position_embeddings;
  max_position_embeddings =
      std::min(max_position_embeddings, settings.original_max_position_embeddings);
}

}  // namespace

absl::Status ReadRopeObject(ConfigFields& fields, const Json& object, const std::string& where,
                            int64_t head_dim, int64_t& max_position_embeddings,
                            RopeSettings& settings) {
  ConfigFields rope(object, where);
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) rope.Refuse("'", name, "': rotary settings per layer type");
  }
  settings.theta = rope.Positive("rope_theta", settings.theta);
  settings.partial_rotary_factor =
      rope.Share("partial_rotary_factor", settings.partial_rotary_factor);
  std::string type = rope.Text("rope_type", rope.Text("type", "default"));
  // Names of early Phi-3 files.
  if (type == "su" || (type == "yarn" && rope.Find("short_factor") != nullptr)) type = "longrope";
  const auto known = std::find_if(kRopeTypes.begin(), kRopeTypes.end(),
                                  [&](const RopeTypeName& one) { return one.name == type; });
  if (known == kRopeTypes.end()) {
    rope.Refuse("rope_type '", type,
                "' is not supported; supported: default, linear, llama3, yarn, longrope");
    return rope.status();
  }
  settings.type = known->type;
  const int64_t stated = fields.Integer("original_max_position_embeddings", 0, 0, kMaxConfigSize);
  settings.original_max_position_embeddings =
      stated > 0 ? stated
                 : rope.Integer("original_max_position_embeddings", max_position_embeddings, 1,
                                kMaxConfigSize);
  const int64_t rotated = RotatedElements(settings, head_dim);
  if (rotated % 2 != 0 || rotated == 0) {
    rope.Reject("partial_rotary_factor ", settings.partial_rotary_factor, " rotates ", rotated,
                " of ", head_dim, " elements of a head; pairs are needed");
  }
  if (!rope.status().ok()) return rope.status();
  if (settings.type == RopeType::kLinear) settings.factor = rope.Positive("factor", std::nullopt);
  if (settings.type == RopeType::kLlama3) ReadLlama3(rope, settings);
  if (settings.type == RopeType::kYarn) ReadYarn(rope, max_position_embeddings, settings);
  if (settings.type == RopeType::kLongRope) {
    ReadLongRope(rope, head_dim, max_position_embeddings, settings);
  }
  return rope.status();
}

absl::Status ReadRopeSettings(ConfigFields& fields, const std::string& origin, int64_t head_dim,
                              const RopeDefaults& defaults, int64_t& max_position_embeddings,
                              RopeSettings& settings) {
  settings.theta = fields.Positive("rope_theta", defaults.theta);
  settings.partial_rotary_factor =
      fields.Share("partial_rotary_factor", defaults.partial_rotary_factor);
  const char* const key =
      fields.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* const object = fields.Find(key);
  if (!fields.status().ok()) return fields.status();
  static const Json kNoScaling = Json::object();
  if (object == nullptr) {
    return ReadRopeObject(fields, kNoScaling, origin, head_dim, max_position_embeddings, settings);
  }
  if (!object->is_object()) fields.Reject(key, " is ", object->dump(), "; an object is needed");
  if (!fields.status().ok()) return fields.status();
  TANDEM_RETURN_IF_ERROR(ReadRopeObject(fields, *object, absl::StrCat(origin, ": ", key), head_dim,
                                        max_position_embeddings, settings));
  return fields.status();
}

nlohmann::ordered_json RopeScalingJson(const RopeSettings& settings) {
  if (settings.type == RopeType::kDefault) return nullptr;
  nlohmann::ordered_json json;
  for (const RopeTypeName& known : kRopeTypes) {
    if (known.type == settings.type) json["rope_type"] = known.name;
  }
  json["factor"] = settings.factor;
  if (settings.type == RopeType::kLlama3) {
    json["low_freq_factor"] = settings.low_freq_factor;
    json["high_freq_factor"] = settings.high_freq_factor;
  }
  if (settings.type == RopeType::kYarn) {
    json["beta_fast"] = settings.beta_fast;
    json["beta_slow"] = settings.beta_slow;
    json["truncate"] = settings.truncate;
  }
  if (settings.type == RopeType::kLongRope) {
    json["short_factor"] = settings.short_factor;
    json["long_factor"] = settings.long_factor;
  }
  if (settings.type == RopeType::kYarn || settings.type == RopeType::kLongRope) {
    json["attention_factor"] = settings.attention_factor;
  }
  if (settings.type != RopeType::kLinear) {
    json["original_max_position_embeddings"] = settings.original_max_position_embeddings;
  }
  return json;
}

}  // namespace tandem
