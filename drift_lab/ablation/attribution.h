// Attribution: takes one capture from the consistency checks to a verdict, which says how much of
// its training-inference mismatch (drift) comes from what: `tandem drift attribute`. Everything
// that is printed, written as JSON or drawn comes from this one struct.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/drift/additive_split.h"
#include "common/drift/drift_metrics.h"
#include "common/drift/drift_splits.h"
#include "drift_lab/ablation/ablation.h"
#include "drift_lab/ablation/part_shares.h"
#include "drift_lab/ablation/token_parts.h"
#include "drift_lab/ablation/verdict.h"
#include "drift_lab/recompute/consistency.h"

namespace tandem::drift {

// What decoding completions one at a time changed, over a random sample of them: the effect of the
// batch composition.
struct AloneSample {
  int64_t num_completions = 0, num_tokens = 0;
  double max_abs = 0;
};

struct Attribution {
  std::string path;
  offpolicy::Capture capture;
  std::vector<ConsistencyFinding> findings;  // if there are any, nothing below was measured

  offpolicy::DriftMetrics by_sequence, by_group;
  std::vector<std::pair<offpolicy::SplitBy, std::vector<offpolicy::DriftBucket>>> splits;
  Ablation ablation;
  TokenParts token_parts;
  PartShares shares;
  offpolicy::AdditiveSplit additive;
  AloneSample alone;
  Verdict verdict;
};

// Reads, checks, scores and judges. Findings of the consistency checks are a result, not an error.
//   NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS  as ReadCapture, CaptureWeights and ReadModelConfig
absl::StatusOr<Attribution> Attribute(const AttributionOptions& options,
                                      const PassProgress& progress);

// The same for a capture in memory. Paths in its manifest are relative to options.capture.
absl::StatusOr<Attribution> AttributeCapture(offpolicy::Capture capture, AttributionOptions options,
                                             const PassProgress& progress);

}  // namespace tandem::drift
