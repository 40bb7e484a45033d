// Named methods of off-policy correction, as settings of stages 6 and 7, and the complete effect of
// a method on a batch. For offline replay and studies on toy policies; training reads the same
// settings from its run file. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/offpolicy/correction.h"
#include "common/offpolicy/correction_options.h"
#include "common/offpolicy/objective_options.h"
#include "common/offpolicy/policy_objective.h"

namespace tandem::offpolicy {

struct NamedMethod {
  std::string_view name;
  // "correction.kind=token_mask correction.min_weight=0.5": the settings that differ from the
  // defaults. Prefixed with "trainer.", the same names configure a run.
  std::string_view settings;
};

// All methods of docs/corrections.md, with the thresholds of their sources, in the order of that
// page.
std::span<const NamedMethod> NamedMethods();

struct MethodOptions {
  CorrectionOptions correction;
  ObjectiveOptions objective;
};

// Parses settings as in NamedMethod, on top of the defaults of a run.
//   INVALID_ARGUMENT  an unknown name, a value out of range, or an error of CheckOptions
absl::StatusOr<MethodOptions> ParseMethod(std::string_view settings);

//   NOT_FOUND  no such method; the message lists the names
absl::StatusOr<MethodOptions> FindMethod(std::string_view name);

// All [T], parallel: the batch of one optimizer update, with whole completions.
struct MethodInputs {
  std::span<const double> behaviour_logprobs, proximal_logprobs, target_logprobs;
  std::span<const double> advantages;
  std::span<const uint8_t> mask;
  std::span<const int64_t> completion;
};

struct MethodResult {
  Correction correction;
  Objective objective;
  // [T]: the gradient of the loss is sum_t coefficient[t] grad log pi_target[t] / denominator.
  std::vector<double> coefficient;
  double denominator = 0;  // 0: nothing is kept, so no update is made

  // sum_t value * scale / denominator; 0 if the denominator is 0.
  double loss = 0;
};

//   INVALID_ARGUMENT  arrays of different lengths
absl::StatusOr<MethodResult> EvaluateMethod(const MethodInputs& inputs,
                                            const MethodOptions& options);

}  // namespace tandem::offpolicy
