// Drift by what a token is: conditional views of the same record, with intervals. The buckets have
// fixed bounds, so ranks and steps can be compared and added up. Pure.
#ifndef TANDEM_COMMON_DRIFT_DRIFT_SPLITS_H_
#define TANDEM_COMMON_DRIFT_DRIFT_SPLITS_H_

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
  kLength,    // tokens of the completion: 1-15, 16-31, then doubling
  kPosition,  // tenth of its completion the token stands in: 0-10%, ...
  kEntropy,   // of the sampling distribution, nats: 0-0.01, 0.01-0.1, 0.1-0.5, 0.5-1, 1-2, 2-4, 4-
  kVersionLag,     // 0, 1, 2, 3-4, 5-8, then doubling
  kPlace,          // first token, last token, those between
  kAdvantageSign,  // positive, negative, zero
};
inline constexpr std::array kAllSplits = {SplitBy::kLength,  SplitBy::kPosition,
                                          SplitBy::kEntropy, SplitBy::kVersionLag,
                                          SplitBy::kPlace,   SplitBy::kAdvantageSign};
std::string_view SplitName(SplitBy by);  // "length", ...

// The buckets of kLength, for other tables over completions: "1-15" is 0.
int LengthBucket(int64_t length);
std::string LengthBucketLabel(int bucket);

struct DriftBucket {
  std::string label;
  DriftSums sums;                                   // over its tokens; nothing over completions
  Interval mean_delta, mean_abs_delta, k3, mean_w;  // over completions that have tokens in it
};

// Buckets with tokens, in rising order.
std::vector<DriftBucket> BucketDrift(const TokenRecord& record, SplitBy by,
                                     const BootstrapOptions& options = {});

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_DRIFT_DRIFT_SPLITS_H_
