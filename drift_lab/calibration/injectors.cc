#include "drift_lab/calibration/injectors.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tandem::drift {
namespace {

using rollout::EngineFaults;
using rollout::FaultRecord;

constexpr char kOneTensor[] = "model.layers.2.self_attn.o_proj.weight";
constexpr char kUndelivered[] = "model.layers.1.mlp.down_proj.weight";

double Same(double dial) { return dial; }

// Bits at natural size 8 less one for every doubling, and back.
int BitsOf(double strength, int natural) {
  return natural - static_cast<int>(std::lround(std::log2(strength)));
}
template <int natural>
double StrengthOfBits(double bits) {
  return std::exp2(natural - bits);
}

const std::vector<double>& Grid() {
  static const std::vector<double> grid = {0.25, 0.5, 1, 2};
  return grid;
}

// Strengths that are estimated from what was drawn.
std::vector<Injector> EstimatedInjectors() {
  return {{"logit_noise", "`logit_noise`, natural 0.05", Part::kLogitNoise, DialKind::kEstimated,
           Grid(), [](double s, Fault& f) { f.dials.logit_noise = 0.05 * s; },
           [](double d) { return d / 0.05; }},
          {"heavy_tail", "`heavy_tail_probability`, natural 0.04, of noise 0.02 times 10",
           Part::kHeavyTail, DialKind::kEstimated, Grid(),
           [](double s, Fault& f) {
             f.dials.logit_noise = 0.02;
             f.dials.heavy_tail_factor = 10;
             f.dials.heavy_tail_probability = 0.04 * s;
           },
           [](double d) { return d / 0.04; }},
          {"shift", "`shift_fraction`, natural 0.1", Part::kShift, DialKind::kEstimated, Grid(),
           [](double s, Fault& f) { f.dials.shift_fraction = 0.1 * s; },
           [](double d) { return d / 0.1; }},
          {"stale_prefix", "`stale_prefix_fraction`, natural 0.3", Part::kStalePrefix,
           DialKind::kEstimated, Grid(),
           [](double s, Fault& f) { f.dials.stale_prefix_fraction = 0.3 * s; },
           [](double d) { return d / 0.3; }},
          {"temperature_claimed", "`temperature` below 1 with `record: claimed`, natural 0.1",
           Part::kTemperature, DialKind::kEstimated, Grid(),
           [](double s, Fault& f) {
             f.dials.temperature = 1 - 0.1 * s;
             f.dials.record = FaultRecord::kClaimed;
           },
           [](double d) { return (1 - d) / 0.1; }}};
}

// Strengths that a replay finds.
std::vector<Injector> IdentifiedInjectors() {
  return {
      {"temperature", "`temperature` below 1, natural 0.1", Part::kTemperature,
       DialKind::kIdentified, Grid(), [](double s, Fault& f) { f.dials.temperature = 1 - 0.1 * s; },
       [](double d) { return (1 - d) / 0.1; }},
      {"top_p", "`top_p` below 1, natural 0.05", Part::kTopP, DialKind::kIdentified, Grid(),
       [](double s, Fault& f) { f.dials.top_p = 1 - 0.05 * s; },
       [](double d) { return (1 - d) / 0.05; }},
      {"top_k", "`top_k`, natural 50, halved when doubled", Part::kTopK, DialKind::kIdentified,
       Grid(), [](double s, Fault& f) { f.dials.top_k = std::lround(50 / s); },
       [](double d) { return 50 / d; }},
      {"min_p", "`min_p`, natural 0.02", Part::kMinP, DialKind::kIdentified, Grid(),
       [](double s, Fault& f) { f.dials.min_p = 0.02 * s; }, [](double d) { return d / 0.02; }},
      {"interpolation", "`weight_interpolation`, natural 0.4", Part::kInterpolation,
       DialKind::kIdentified, Grid(),
       [](double s, Fault& f) { f.dials.weight_interpolation = 0.4 * s; },
       [](double d) { return d / 0.4; }},
      {"tensor", "`weight_interpolation` of one tensor, natural 0.4", Part::kTensor,
       DialKind::kIdentified, Grid(),
       [](double s, Fault& f) {
         f.dials.weight_interpolation = 0.4 * s;
         f.dials.tensor = kOneTensor;
       },
       [](double d) { return d / 0.4; }},
      {"other_version",
       "`stale_versions`, natural 2",
       Part::kOtherVersion,
       DialKind::kIdentified,
       {0.5, 1, 2},
       [](double s, Fault& f) { f.dials.stale_versions = std::lround(2 * s); },
       [](double d) { return d / 2; }},
      {"body_bits", "`body_bits`, natural 8, one fewer when doubled", Part::kBodyBits,
       DialKind::kIdentified, Grid(), [](double s, Fault& f) { f.dials.body_bits = BitsOf(s, 8); },
       StrengthOfBits<8>},
      {"head_bits", "`head_bits`, natural 8", Part::kHeadBits, DialKind::kIdentified, Grid(),
       [](double s, Fault& f) { f.dials.head_bits = BitsOf(s, 8); }, StrengthOfBits<8>},
      {"kv_bits", "`kv_bits`, natural 8", Part::kKvBits, DialKind::kIdentified, Grid(),
       [](double s, Fault& f) { f.dials.kv_bits = BitsOf(s, 8); }, StrengthOfBits<8>},
      {"rotary_bits", "`rotary_bits`, natural 8", Part::kRotaryBits, DialKind::kIdentified, Grid(),
       [](double s, Fault& f) { f.dials.rotary_bits = BitsOf(s, 8); }, StrengthOfBits<8>},
      {"kv_quantisation", "`kv_quant_bits`, natural 8", Part::kKvQuantisation,
       DialKind::kIdentified, Grid(),
       [](double s, Fault& f) { f.dials.kv_quant_bits = BitsOf(s, 8); }, StrengthOfBits<8>}};
}

// Faults that are there or not.
std::vector<Injector> Switches() {
  return {
      {"undelivered_tensor",
       "`undelivered_tensor`",
       Part::kTensor,
       DialKind::kSwitch,
       {1},
       [](double, Fault& f) { f.dials.undelivered_tensor = kUndelivered; },
       Same},
      {"first_id",
       "`wrong_bos`, the end-of-text id",
       Part::kFirstId,
       DialKind::kSwitch,
       {1},
       [](double, Fault& f) { f.dials.wrong_bos = 0; },
       Same},
  };
}

}  // namespace

std::span<const Injector> AllInjectors() {
  static const std::vector<Injector> injectors = [] {
    std::vector<Injector> all = EstimatedInjectors();
    for (auto& more : {IdentifiedInjectors(), Switches()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return injectors;
}

const Injector* InjectorNamed(std::string_view name) {
  for (const Injector& injector : AllInjectors()) {
    if (injector.name == name) return &injector;
  }
  return nullptr;
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

offpolicy::Interval StrengthOf(const Injector& injector, const NamedCause& cause) {
  offpolicy::Interval strength{.value = injector.strength_of(cause.strength.value)};
  if (!cause.strength.known()) return strength;
  strength.low = injector.strength_of(cause.strength.low);
  strength.high = injector.strength_of(cause.strength.high);
  if (strength.low > strength.high) std::swap(strength.low, strength.high);
  return strength;
}

}  // namespace tandem::drift
