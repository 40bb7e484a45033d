// Part: what separates two neighbouring rungs of the ladder: the vocabulary of an attribution.
// Pure.
#pragma once

#include <string_view>

namespace tandem::drift {

// In the order of the ladder, from the server's record to the trainer's.
enum class Part {
  kRecord,  // of the record, what no cause below explains
  // Causes inside the record, each found by replaying it (record_diagnosis.h):
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
  kOtherVersion,
  kInterpolation,
  kTensor,
  kStalePrefix,
  kPath,       // decode against prefill
  kCarriedKv,  // KV kept across an install against KV of the token's own version
  kEmulation,  // the serving engine against the fp32 engine that is rounded like it
  kBody,
  kHead,
  kKv,
  kCast,           // factors: precision of linear layers, of the head, of KV; weights as served
  kKernels,        // engine against trainer, everything else equal
  kLayout,         // trainer alone against packed as in training
  kStaleness,      // masters of the version that drew the token against those now
  kTrainerRecord,  // the trainer's replay against what it recorded
};

std::string_view PartName(Part part);         // "record", ...
std::string_view PartDescription(Part part);  // for people

// Is it a place where two numbers differ, rather than a cause?
bool IsPlace(Part part);

// Was it found inside the record, by a hypothesis?
bool IsDiagnosed(Part part);

// Mean absolute gap below which two fp32 log-probs are the same number: a few units in the last
// place of a log-prob of typical size. Nobody asks for shares of that.
inline constexpr double kLogprobFloor = 2e-6;

}  // namespace tandem::drift
