#include "drift_lab/calibration/injectors.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace tandem::drift {
namespace {

constexpr char kOneTensor[] = "model.layers.2.self_attn.o_proj.weight";
constexpr char kUndelivered[] = "model.layers.1.mlp.down_proj.weight";

// The natural sizes 0.05, 8 bits, ... are in each parameter's text too, which the published page
// shows.
std::vector<Injector> WithStrengths() {
  using enum ParameterKind;
  using enum Scale;
  return {
      {"logit_noise", "`logit_noise`, natural 0.05", Part::kLogitNoise, kEstimated, kTimes, 0.05,
       [](double x, Fault& f) { f.engine.logit_noise = x; }},
      {"heavy_tail", "`heavy_tail_probability`, natural 0.04, of noise 0.02 times 10",
       Part::kHeavyTail, kEstimated, kTimes, 0.04,
       [](double x, Fault& f) {
         f.engine.logit_noise = 0.02;
         f.engine.heavy_tail_factor = 10;
         f.engine.heavy_tail_probability = x;
       }},
      {"shift", "`shift_fraction`, natural 0.1", Part::kShift, kEstimated, kTimes, 0.1,
       [](double x, Fault& f) { f.engine.shift_fraction = x; }},
      {"stale_prefix", "`stale_prefix_fraction`, natural 0.3", Part::kStalePrefix, kEstimated,
       kTimes, 0.3, [](double x, Fault& f) { f.engine.stale_prefix_fraction = x; }},
      {"temperature_claimed", "`temperature` below 1 with `record: claimed`, natural 0.1",
       Part::kTemperature, kEstimated, kBelowOne, 0.1,
       [](double x, Fault& f) {
         f.engine.temperature = x;
         f.engine.record = rollout::FaultRecord::kClaimed;
       }},
      {"temperature", "`temperature` below 1, natural 0.1", Part::kTemperature, kIdentified,
       kBelowOne, 0.1, [](double x, Fault& f) { f.engine.temperature = x; }},
      {"top_p", "`top_p` below 1, natural 0.05", Part::kTopP, kIdentified, kBelowOne, 0.05,
       [](double x, Fault& f) { f.engine.top_p = x; }},
      {"top_k", "`top_k`, natural 50, halved when doubled", Part::kTopK, kIdentified, kDivided, 50,
       [](double x, Fault& f) { f.engine.top_k = std::lround(x); }},
      {"min_p", "`min_p`, natural 0.02", Part::kMinP, kIdentified, kTimes, 0.02,
       [](double x, Fault& f) { f.engine.min_p = x; }},
      {"interpolation", "`weight_interpolation`, natural 0.4", Part::kInterpolation, kIdentified,
       kTimes, 0.4, [](double x, Fault& f) { f.engine.weight_interpolation = x; }},
      {"tensor", "`weight_interpolation` of one tensor, natural 0.4", Part::kTensor, kIdentified,
       kTimes, 0.4,
       [](double x, Fault& f) {
         f.engine.weight_interpolation = x;
         f.engine.tensor = kOneTensor;
       }},
      {"other_version",
       "`stale_versions`, natural 2",
       Part::kOtherVersion,
       kIdentified,
       kTimes,
       2,
       [](double x, Fault& f) { f.engine.stale_versions = std::lround(x); },
       {0.5, 1, 2}},
      {"body_bits", "`body_bits`, natural 8, one fewer when doubled", Part::kBodyBits, kIdentified,
       kBits, 8, [](double x, Fault& f) { f.engine.body_bits = static_cast<int>(x); }},
      {"head_bits", "`head_bits`, natural 8", Part::kHeadBits, kIdentified, kBits, 8,
       [](double x, Fault& f) { f.engine.head_bits = static_cast<int>(x); }},
      {"kv_bits", "`kv_bits`, natural 8", Part::kKvBits, kIdentified, kBits, 8,
       [](double x, Fault& f) { f.engine.kv_bits = static_cast<int>(x); }},
      {"rotary_bits", "`rotary_bits`, natural 8", Part::kRotaryBits, kIdentified, kBits, 8,
       [](double x, Fault& f) { f.engine.rotary_bits = static_cast<int>(x); }},
      {"kv_quantisation", "`kv_quant_bits`, natural 8", Part::kKvQuantisation, kIdentified, kBits,
       8, [](double x, Fault& f) { f.engine.kv_quant_bits = static_cast<int>(x); }},
  };
}

std::vector<Injector> WithoutStrength() {
  using enum ParameterKind;
  using enum Scale;
  return {
      {"undelivered_tensor",
       "`undelivered_tensor`",
       Part::kTensor,
       kSwitch,
       kTimes,
       1,
       [](double, Fault& f) { f.engine.undelivered_tensor = kUndelivered; },
       {1}},
      {"weight_format",
       "`weight_format: int8`",
       Part::kWeightFormat,
       kSwitch,
       kTimes,
       1,
       [](double, Fault& f) { f.engine.weight_format = WeightScheme::kInt8; },
       {1}},
      {"first_id",
       "`wrong_bos`, the end-of-text id",
       Part::kFirstId,
       kSwitch,
       kTimes,
       1,
       [](double, Fault& f) { f.engine.wrong_bos = 0; },
       {1}},
  };
}

std::vector<Injector> MakeInjectors() {
  std::vector<Injector> injectors = WithStrengths();
  std::vector<Injector> switches = WithoutStrength();
  std::ranges::move(switches, std::back_inserter(injectors));
  return injectors;
}

}  // namespace

void Injector::Set(double strength, Fault& fault) const {
  switch (scale) {
    case Scale::kTimes:
      return set(natural * strength, fault);
    case Scale::kBelowOne:
      return set(1 - natural * strength, fault);
    case Scale::kDivided:
      return set(natural / strength, fault);
    case Scale::kBits:
      return set(natural - static_cast<double>(std::lround(std::log2(strength))), fault);
  }
}

double Injector::StrengthOfValue(double value) const {
  switch (scale) {
    case Scale::kTimes:
      return value / natural;
    case Scale::kBelowOne:
      return (1 - value) / natural;
    case Scale::kDivided:
      return natural / value;
    case Scale::kBits:
      return std::exp2(natural - value);
  }
  return 0;
}

std::span<const Injector> AllInjectors() {
  static const std::vector<Injector> injectors = MakeInjectors();
  return injectors;
}

const Injector* InjectorNamed(std::string_view name) {
  const auto found = std::ranges::find(AllInjectors(), name, &Injector::name);
  return found == AllInjectors().end() ? nullptr : &*found;
}

std::span<const InjectorPair> AllPairs() {
  static constexpr InjectorPair kPairs[] = {{"temperature", "top_p"},
                                            {"temperature", "top_k"},
                                            {"temperature", "logit_noise"},
                                            {"temperature", "kv_bits"},
                                            {"temperature", "shift"},
                                            {"temperature", "interpolation"},
                                            {"top_p", "stale_prefix"},
                                            {"shift", "body_bits"},
                                            {"interpolation", "logit_noise"},
                                            {"other_version", "kv_quantisation"},
                                            {"tensor", "shift"},
                                            {"first_id", "temperature"}};
  return kPairs;
}

std::span<const UnmodelledFault> AllUnmodelled() {
  static constexpr UnmodelledFault kFaults[] = {
      {"rotary_base", "another base of the rotary frequencies, 2 times", Unmodelled::kRotaryBase,
       2},
      {"norm_epsilon", "another epsilon in the norms, 10 000 times", Unmodelled::kNormEpsilon, 1e4},
      {"garbled_tensor", "noise of 2 % on one tensor that no version has",
       Unmodelled::kGarbledTensor, 0.02},
      {"rounded_record", "log-probs written with two decimals", Unmodelled::kRoundedRecord, 0.01}};
  return kFaults;
}

bool IsInjectable(std::string_view cause) {
  return std::ranges::any_of(
      AllInjectors(), [&](const Injector& injector) { return PartName(injector.part) == cause; });
}

offpolicy::Interval StrengthOf(const Injector& injector, const offpolicy::Interval& value) {
  offpolicy::Interval strength{.value = injector.StrengthOfValue(value.value)};
  if (!value.known()) return strength;
  strength.low = injector.StrengthOfValue(value.low);
  strength.high = injector.StrengthOfValue(value.high);
  if (strength.low > strength.high) std::swap(strength.low, strength.high);
  return strength;
}

}  // namespace tandem::drift
