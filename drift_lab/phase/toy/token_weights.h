// TokenWeights: how much each sampled token counts, by method. The toy makes one update per batch,
// so the proximal policy is the target policy and only one ratio remains.
//
//   w = pi_target / pi_behaviour of a token;  W = the product of w over its completion
//   update: sum over kept tokens of weight * advantage * grad log pi_target
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tandem::drift {

enum class Method {
  kNone,           // 1: REINFORCE as if the data were on-policy
  kTokenTis,       // min(w, 2)
  kSequenceTis,    // min(W, 2)
  kSequenceMis,    // W where .5 <= W <= 2, else dropped
  kIcePop,         // w where .5 <= w <= 5, else dropped
  kTopr,           // 1 where the advantage is >= 0, min(W, 1) elsewhere
  kBypassClip,     // w, dropped where PPO's clip at .8 and 1.2, centred on behaviour, acts
  kGeometricMask,  // 1 where .9 <= W^(1/tokens) <= 1.1, else dropped
  kSignMask,       // min(W, 2) where the advantage is >= 0; elsewhere as kSequenceMis
};

// In the order of the enumeration.
std::span<const Method> AllMethods();
const char* MethodName(Method method);
std::optional<Method> MethodNamed(std::string_view name);

struct TokenWeights {
  std::vector<float> weight;  // [T]; 0 where not kept
  std::vector<uint8_t> kept;  // [T]
};

// All [T], in parallel. `sequence` is the number of each token's completion; the tokens of a
// completion are contiguous. A log ratio is clamped to +-20 before its exponential.
TokenWeights ComputeWeights(Method method, std::span<const float> target_logprobs,
                            std::span<const float> behaviour_logprobs,
                            std::span<const int32_t> sequence, std::span<const float> advantages);

}  // namespace tandem::drift
