// Drift by properties of a token: the same record, split into buckets, with intervals. The bounds
// of the buckets are fixed, so that ranks and steps can be compared and added up. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/capture/token_record.h"
#include "common/drift/drift_sums.h"
#include "common/statistics/cluster_bootstrap.h"

namespace tandem::offpolicy {

enum class SplitBy {
  kLength,         // length of the completion in tokens: 1-15, 16-31, then doubling
  kPosition,       // position relative to the completion's length: 0-10%, ...
  kEntropy,        // sampling entropy, nats: 0-0.01, 0.01-0.1, 0.1-0.5, 0.5-1, 1-2, 2-4, 4-
  kVersionLag,     // 0, 1, 2, 3-4, 5-8, then doubling
  kPlace,          // first token, last token, tokens in between
  kAdvantageSign,  // positive, negative, zero
  kTurn,           // 1 to 8, 9-16, then doubling; no buckets where all completions are of one turn
};
inline constexpr std::array kAllSplits = {
    SplitBy::kLength, SplitBy::kPosition,      SplitBy::kEntropy, SplitBy::kVersionLag,
    SplitBy::kPlace,  SplitBy::kAdvantageSign, SplitBy::kTurn};
std::string_view SplitName(SplitBy by);  // "length", ...

// The buckets of kLength, for other tables over completions; "1-15" is bucket 0.
int LengthBucket(int64_t length);
std::string LengthBucketLabel(int bucket);

struct DriftBucket {
  std::string label;
  DriftSums sums;  // sums over tokens; the sums over completions stay 0
  // These intervals resample the completions that have tokens in the bucket.
  Interval mean_delta, mean_abs_delta, k3, mean_w;
};

// The buckets that have tokens, in rising order.
std::vector<DriftBucket> BucketDrift(const TokenRecord& record, SplitBy by,
                                     const BootstrapOptions& options = {});

}  // namespace tandem::offpolicy
