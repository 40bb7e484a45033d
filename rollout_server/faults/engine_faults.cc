#include "rollout_server/faults/engine_faults.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::rollout {
namespace {

void BindTransforms(OptionBinder& binder, EngineFaults& f) {
  binder.Number("temperature", &f.temperature, {.min = 0.1, .max = 10}, "",
                "undisclosed factor on the temperature a call asks for; 1: off");
  binder.Integer("top_k", &f.top_k, {.min = 0, .max = 1 << 20}, "ids", "undisclosed top-k; 0: off");
  binder.Number("top_p", &f.top_p, {.min = 0, .max = 1, .exclusive_min = true}, "",
                "undisclosed top-p; 1: off");
  binder.Number("min_p", &f.min_p, {.min = 0, .max = 0.999}, "", "undisclosed min-p; 0: off");
  binder.Choice<FaultRecord>("record", &f.record,
                             {{"drawn", FaultRecord::kDrawn}, {"claimed", FaultRecord::kClaimed}},
                             "under undisclosed transforms the record is of the distribution drawn "
                             "from, or of the one claimed");
  binder.Number("logit_noise", &f.logit_noise, {.min = 0, .max = 10}, "nats",
                "standard deviation of Gaussian noise on every logit; 0: off");
  binder.Number("heavy_tail_probability", &f.heavy_tail_probability, {.min = 0, .max = 1}, "",
                "share of tokens whose logit noise is multiplied; 0: off");
  binder.Number("heavy_tail_factor", &f.heavy_tail_factor, {.min = 1, .max = 1000}, "",
                "what their logit noise is multiplied by");
}

void BindForward(OptionBinder& binder, EngineFaults& f) {
  const NumberRange bits = {.min = kLeastSignificandBits, .max = kFp32SignificandBits};
  binder.Integer("body_bits", &f.body_bits, bits, "bits",
                 "significand bits kept of the inputs of linear layers but the head; 24: off");
  binder.Integer("head_bits", &f.head_bits, bits, "bits",
                 "significand bits kept of the head's inputs and of the logits; 24: off");
  binder.Integer("kv_bits", &f.kv_bits, bits, "bits",
                 "significand bits kept of keys and values as they are written; 24: off");
  binder.Integer("rotary_bits", &f.rotary_bits, bits, "bits",
                 "significand bits kept of rotary angles; 24: off");
  binder.Integer(
      "kv_quant_bits", &f.kv_quant_bits, {.min = 0, .max = 16}, "bits",
      "keys and values as symmetric integers of so many bits (2 and more), one scale for each head "
      "vector; 0: off");
  binder.Integer("kv_quant_from", &f.kv_quant_from, {.min = 0, .max = 1 << 28}, "tokens",
                 "first position that kv_quant_bits acts on");
}

void BindWeightsAndRecords(OptionBinder& binder, EngineFaults& f) {
  binder.Choice<WeightScheme>("weight_format", &f.weight_format,
                              {{"dtype", WeightScheme::kWide},
                               {"int8", WeightScheme::kInt8},
                               {"fp8_e4m3", WeightScheme::kFp8E4m3},
                               {"int4_group", WeightScheme::kInt4Group}},
                              "undisclosed number format of the weights; dtype: off");
  binder.Integer("stale_versions", &f.stale_versions, {.min = 0, .max = 64}, "versions",
                 "serves the weights of so many installs before; 0: off");
  binder.Number("weight_interpolation", &f.weight_interpolation, {.min = -1, .max = 1}, "",
                "serves weights this far from the live version towards the one before; 0: off");
  binder.Text("tensor", &f.tensor,
              "the one tensor stale_versions and weight_interpolation act on; empty: all");
  binder.Text("undelivered_tensor", &f.undelivered_tensor,
              "this tensor keeps its first value for ever; empty: off");
  binder.Number(
      "stale_prefix_fraction", &f.stale_prefix_fraction, {.min = 0, .max = 1}, "",
      "share of groups whose prompt is computed under the weights before, as by a stale prefix "
      "cache (the real one is off then); 0: off");
  binder.Number("shift_fraction", &f.shift_fraction, {.min = 0, .max = 1}, "",
                "share of completions whose log-probs are shifted by one token; 0: off");
  binder.Flag("synthetic_end", &f.synthetic_end, "an end token is recorded with log-prob 0");
  binder.Integer("wrong_bos", &f.wrong_bos, {.min = -1, .max = 1 << 28}, "id",
                 "the first prompt token is computed as this id; -1: off");
  binder.Flag("retokenise", &f.retokenise, "ids come back encoded again from their text");
}

std::string NameOf(FaultRecord record) {
  return record == FaultRecord::kDrawn ? " (record drawn)" : " (record claimed)";
}

}  // namespace

void BindOptions(OptionBinder& binder, EngineFaults& faults) {
  BindTransforms(binder, faults);
  BindForward(binder, faults);
  BindWeightsAndRecords(binder, faults);
}

ForwardArithmetic EngineFaults::arithmetic() const {
  return {{static_cast<int>(body_bits), static_cast<int>(head_bits), static_cast<int>(kv_bits),
           static_cast<int>(rotary_bits)},
          {static_cast<int>(kv_quant_bits), kv_quant_from}};
}

std::vector<std::string> DescribeFaults(const EngineFaults& f) {
  const EngineFaults off;
  std::vector<std::string> active;
  const auto add = [&](bool is_active, const auto&... parts) {
    if (is_active) active.push_back(absl::StrCat(parts...));
  };
  const auto on = [&](auto EngineFaults::*field) { return f.*field != off.*field; };
  const std::string record = NameOf(f.record), of = f.tensor.empty() ? "" : " of " + f.tensor;
  add(on(&EngineFaults::temperature), "temperature ", f.temperature, record);
  add(on(&EngineFaults::top_k), "top_k ", f.top_k, record);
  add(on(&EngineFaults::top_p), "top_p ", f.top_p, record);
  add(on(&EngineFaults::min_p), "min_p ", f.min_p, record);
  add(on(&EngineFaults::logit_noise), "logit_noise ", f.logit_noise);
  add(on(&EngineFaults::logit_noise) && f.heavy_tail_probability > 0, "heavy_tail_probability ",
      f.heavy_tail_probability, " (heavy_tail_factor ", f.heavy_tail_factor, ")");
  add(on(&EngineFaults::body_bits), "body_bits ", f.body_bits);
  add(on(&EngineFaults::head_bits), "head_bits ", f.head_bits);
  add(on(&EngineFaults::kv_bits), "kv_bits ", f.kv_bits);
  add(on(&EngineFaults::rotary_bits), "rotary_bits ", f.rotary_bits);
  add(on(&EngineFaults::kv_quant_bits), "kv_quant_bits ", f.kv_quant_bits, " from position ",
      f.kv_quant_from);
  add(on(&EngineFaults::weight_format), "weight_format ",
      std::string(WeightSchemeName(f.weight_format)));
  add(on(&EngineFaults::stale_versions), "stale_versions ", f.stale_versions, of);
  add(on(&EngineFaults::weight_interpolation), "weight_interpolation ", f.weight_interpolation, of);
  add(on(&EngineFaults::undelivered_tensor), "undelivered_tensor ", f.undelivered_tensor);
  add(on(&EngineFaults::stale_prefix_fraction), "stale_prefix_fraction ", f.stale_prefix_fraction);
  add(on(&EngineFaults::shift_fraction), "shift_fraction ", f.shift_fraction);
  add(f.synthetic_end, "synthetic_end");
  add(on(&EngineFaults::wrong_bos), "wrong_bos ", f.wrong_bos);
  add(f.retokenise, "retokenise");
  return active;
}

absl::StatusOr<QuantisationPlan> ServedPlan(const EngineFaults& faults, const ModelConfig& config,
                                            const QuantisationPlan& claimed) {
  if (faults.weight_format == WeightScheme::kWide) return claimed;
  absl::StatusOr<QuantisationPlan> plan =
      MakeQuantisationPlan(config, {.weights = faults.weight_format});
  if (!plan.ok()) return InvalidArgument("drift.inject.weight_format: ", plan.status().message());
  plan->kv = claimed.kv;
  return plan;
}

absl::Status CheckFaults(const EngineFaults& faults, const ModelConfig& config) {
  const std::vector<TensorSpec> tensors = ModelTensors(config, DType::kF32);
  const auto check = [&](const char* field, const std::string& name) {
    const auto named = [&](const TensorSpec& spec) { return spec.name == name; };
    if (name.empty() || std::any_of(tensors.begin(), tensors.end(), named)) return absl::OkStatus();
    return InvalidArgument("drift.inject.", field, " is '", name, "': the model has ",
                           tensors.size(), " tensors, named like '",
                           tensors[tensors.size() / 2].name, "'");
  };
  TANDEM_RETURN_IF_ERROR(check("tensor", faults.tensor));
  TANDEM_RETURN_IF_ERROR(check("undelivered_tensor", faults.undelivered_tensor));
  if (!faults.tensor.empty() && faults.stale_versions == 0 && faults.weight_interpolation == 0) {
    return InvalidArgument(
        "drift.inject.tensor names a tensor, but nothing acts on it: set stale_versions or "
        "weight_interpolation");
  }
  TANDEM_RETURN_IF_ERROR(ServedPlan(faults, config, {}).status());
  if (faults.kv_quant_bits == 1) {
    return InvalidArgument("drift.inject.kv_quant_bits is 1, want 0 (off) or 2 to 16");
  }
  if (faults.wrong_bos >= config.vocab_size) {
    return InvalidArgument("drift.inject.wrong_bos is ", faults.wrong_bos, ", want -1 to ",
                           config.vocab_size - 1);
  }
  return absl::OkStatus();
}

}  // namespace tandem::rollout
