// Attribution: one capture from the gate to a verdict: `tandem drift attribute`. Everything that is
// printed, written as JSON or drawn comes out of this one struct.
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
#include "drift_lab/ablation/verdict.h"
#include "drift_lab/recompute/consistency.h"

namespace tandem::drift {

struct AttributionOptions {
  std::string capture;  // directory
  std::string model;    // directory; empty: the one the capture names
  std::string weights;  // for versions whose masters the capture does not carry; may be empty
  bool full = false;
  uint64_t seed = 1;        // of samples and of the bootstrap
  int64_t num_threads = 0;  // of the engines; 0: the cores of the machine
  int64_t bootstrap_replicates = offpolicy::BootstrapOptions().replicates;
};

// What decoding completions one at a time changed, over a random sample of them.
struct AloneSample {
  int64_t num_completions = 0, num_tokens = 0;
  double max_abs = 0;
};

struct Attribution {
  std::string path;
  offpolicy::Capture capture;
  std::vector<GateFinding> findings;  // not empty: nothing below was measured

  offpolicy::DriftMetrics by_sequence, by_group;
  std::vector<std::pair<offpolicy::SplitBy, std::vector<offpolicy::DriftBucket>>> splits;
  Ladder ladder;
  TokenParts token_parts;
  PartShares shares;
  offpolicy::AdditiveSplit additive;
  AloneSample alone;
  Verdict verdict;
};

// Reads, checks, scores and judges. Findings of the gate are a result, not an error.
//   NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS  of ReadCapture, CaptureWeights and the model directory
absl::StatusOr<Attribution> Attribute(const AttributionOptions& options,
                                      const LadderProgress& progress);

// The same of a capture that is at hand; paths in its manifest are relative to options.capture.
absl::StatusOr<Attribution> AttributeCapture(offpolicy::Capture capture,
                                             const AttributionOptions& options,
                                             const LadderProgress& progress);

}  // namespace tandem::drift
