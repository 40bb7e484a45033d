// CauseStrength: what a diagnosed cause is called, how strong it is, and how sure that is. Pure.
#pragma once

#include <span>

#include "common/capture/capture.h"
#include "drift_lab/diagnosis/record_diagnosis.h"
#include "drift_lab/hypotheses/hypothesis_search.h"

namespace tandem::drift {

// A cause that was replayed: `attempt` over all completions holds it, `without` is what the causes
// before it gave, `all` what all causes together give. Temperature and amounts of weights: cluster
// bootstrap of the last least-squares step. Top-p and top-k: the values that keep the same
// sets; min-p: those between the nearest ones of `tried` that do not. Stale prefixes: the share of
// flagged groups.
DiagnosedCause DescribeReplayed(const offpolicy::Capture& capture, Part part,
                                const Attempt& attempt, const Attempt& without, const Attempt& all,
                                std::span<const Tried> tried,
                                const offpolicy::BootstrapOptions& bootstrap);

DiagnosedCause DescribeShift(const ShiftEstimate& shifts);
DiagnosedCause DescribeNoise(const NoiseFit& noise);

}  // namespace tandem::drift
