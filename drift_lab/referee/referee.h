// Referee: the model's own weights as a third engine. It scores the records' tokens in fp32 and in
// bf16, so that gap = (behaviour - referee) + (referee - proximal) says which side is off, and
// replays suspects to say why. The last stage of a verdict on records. Used by `tandem drift why
// RECORDS --model DIR`. The header is free of LibTorch.
//
// Nothing wrong is named with confidence: a cause is named only if it explains the side's difference
// down to numbers that are the same, or down to what rounding gives, on rows that were not used to
// find it, and clearly better than every cause of another kind. Else the verdict says what it might
// be, or that it is none of what was tried.
//
// Two passes over up to `max_tokens` drawn tokens, and for a side that is not healthy one pass over
// about `screen_tokens` for every suspect and over `verify_tokens` for the best three.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "drift_lab/records/records.h"
#include "drift_lab/referee/residuals.h"
#include "drift_lab/referee/settings_search.h"
#include "drift_lab/screening/sign.h"
#include "drift_lab/screening/token_pairs.h"

namespace tandem::drift {

struct RefereeOptions {
  std::string model;    // directory or Hub name
  std::string weights;  // a second directory to suspect; may be empty
  int64_t max_tokens = 3000, screen_tokens = 160, verify_tokens = 500;
  double budget_seconds = 75;  // no suspect is begun after so long
  int num_threads = 2;
  uint64_t seed = 1;
};

enum class SideStatus : uint8_t {
  kNoValues,
  kSameNumbers,  // as the referee in fp32
  kRounding,     // what bf16 (or fp16) in another engine's kernels gives
  kNamed,
  kOneOf,    // several causes explain it as well
  kUnknown,  // more than that, and none of what was tried
};
const char* SideStatusName(SideStatus status);  // "same_numbers", "rounding", "named", ...

// A cause, as measured on rows that were not used to find it.
struct RefereeCause {
  std::string cause, text, advice;
  Explained explained;
  ResidualSize left;
  // What rounding to int8 what the matrices multiply does beside, in noise scales; 0: no part of it.
  double rounded_inputs = 0;
};

struct SideReport {
  SignSide side = SignSide::kUnknown;
  std::string engine;
  SideStatus status = SideStatus::kNoValues;
  SamplerSettings claimed;
  ResidualSize gap;         // side less referee
  double first_tokens = 0;  // root mean square over the first 8 drawn tokens, in that of the others
  std::vector<RefereeCause> causes;  // named; or those it is one of; or the nearest
  int64_t num_tried = 0, num_left = 0;
  std::vector<std::string> tried;  // causes, each once
  std::string sentence;            // the verdict
  std::string advice;              // what to do; empty: nothing
  bool by_settings = false;  // what is named is at the logits: the forward pass is the model's
  bool draws_checked = false;
  DrawCheck draws;
  std::string draws_sentence;
};

struct RefereeReport {
  std::string model, weights;
  int64_t num_rows = 0, num_tokens = 0, num_drawn = 0;  // scored; drawn in the file
  double bf16_mean_abs = 0;                             // the referee's own bf16 against its fp32
  double correlation_of_sides = 0;  // of what the two sides differ by from the referee
  std::string headline;
  std::vector<SideReport> sides;
  double seconds = 0;
};

using RefereeProgress = std::function<void(const std::string& what, double done)>;

// `pairs` are the records' tokens without the values that stand for "no value" (screening.h).
//   errors of RefereeModel::Load and RefereeForward
//   INVALID_ARGUMENT  no drawn token has a context and a value
absl::StatusOr<RefereeReport> RunReferee(const Records& records, const TokenPairs& pairs,
                                         const RefereeOptions& options,
                                         const RefereeProgress& progress);

}  // namespace tandem::drift
