// Part: what separates two neighbouring steps of an ablation. Parts are the vocabulary of an
// attribution. Pure.
#pragma once

#include <string_view>

namespace tandem::drift {

// In the order of the ablation, from the server's record to the trainer's.
enum class Part {
  kRecord,  // the part of the record that none of the causes below explains
  // Causes inside the record, each found by a replay (record_diagnosis.h):
  kLogitNoise,
  kHeavyTail,
  kShift,
  kTemperature,
  kTopP,
  kTopK,
  kMinP,
  kFirstId,
  kBodyBits,
  kHeadBits,
  kKvBits,
  kRotaryBits,
  kKvQuantisation,
  kWeightFormat,
  kOtherVersion,
  kInterpolation,
  kTensor,
  kStalePrefix,
  kPath,          // decode against prefill
  kCarriedKv,     // KV kept across an install against KV of the token's own version
  kUnmerged,      // adapters beside the weights against merged into them
  kQuantisation,  // weights and KV in the formats that the server names against its dtype
  kEmulation,     // the serving engine against the fp32 engine that is rounded like it
  // Factors: precision of the linear layers, of the head and of KV; weights as served.
  kBody,
  kHead,
  kKv,
  kCast,
  kKernels,        // engine against trainer, everything else equal
  kLayout,         // trainer alone against packed as in training
  kStaleness,      // masters of the version that sampled the token against those now
  kTrainerRecord,  // the trainer's replay against what it recorded
};

std::string_view PartName(Part part);         // "record", ...
std::string_view PartDescription(Part part);  // for people

// True if the part is a place where two numbers differ, and not a cause.
bool IsPlace(Part part);

// Mean absolute drift, in nats, below which fp32 cannot tell two log-probs apart: a few units in
// the last place of a log-prob of typical size. No shares are computed of less.
inline constexpr double kLogprobFloor = 2e-6;

}  // namespace tandem::drift
