// Describes a diagnosed cause: its label, its strength and the interval of the strength. Pure.
#pragma once

#include <span>

#include "common/capture/capture.h"
#include "drift_lab/diagnosis/record_diagnosis.h"
#include "drift_lab/hypotheses/hypothesis_search.h"

namespace tandem::drift {

// A cause that was found by a replay, and what its description needs.
struct ReplayedCause {
  Part part;
  const Attempt& attempt;  // over all completions, with this cause and those before it
  const Attempt& without;  // with the causes before it
  const Attempt& all;      // with all causes
};

// Strengths: a temperature or an amount of weights has the interval of the last least-squares step,
// by cluster bootstrap over completions. Top-p and top-k have the values that retain the same sets
// of ids as bounds; min-p the nearest values among `tried` that do not. A stale prefix has the
// share of flagged groups.
DiagnosedCause DescribeReplayed(const offpolicy::Capture& capture, const ReplayedCause& cause,
                                std::span<const Tried> tried,
                                const offpolicy::BootstrapOptions& bootstrap);

DiagnosedCause DescribeShift(const ShiftEstimate& shifts);
DiagnosedCause DescribeNoise(const NoiseFit& noise);

}  // namespace tandem::drift
