// Injectors: the faults that the lab is calibrated on, each as a dial whose strength is counted in
// a natural size, with the cause it must be called by; and faults that the lab must not name. Pure.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/ablation/verdict.h"
#include "drift_lab/calibration/subject.h"
#include "drift_lab/hypotheses/part.h"

namespace tandem::drift {

// How the strength of a cause is known.
enum class DialKind {
  kEstimated,   // from what was drawn: an interval with a chance of being wrong
  kIdentified,  // by a replay that gives the record back: right or wrong, with no interval to cover
                // anything
  kSwitch,      // no strength
};

struct Injector {
  const char* name;
  const char* dial;  // its knob and natural size, for people
  Part part;         // the cause that it is
  DialKind kind;
  std::vector<double>
      strengths;  // natural sizes; the grid's 1/4, 1/2, 1, 2 where the dial has them
  void (*turn)(double strength, Fault& fault);
  // The strength that a cause of `part` speaks of, from its dial; monotone.
  double (*strength_of)(double dial);
};
std::span<const Injector> AllInjectors();
const Injector* InjectorNamed(std::string_view name);  // null: none

// Two faults at once, both at natural size.
struct InjectorPair {
  const char *first, *second;
};
std::span<const InjectorPair> AllPairs();

struct UnmodelledFault {
  const char *name, *what;
  Unmodelled kind;
  double amount;
};
std::span<const UnmodelledFault> AllUnmodelled();

// Is `cause` (a NamedCause's) one that an injector could have made?
bool IsInjectable(std::string_view cause);

// The strength of a named cause in natural sizes of `injector`, with its interval where it has one.
offpolicy::Interval StrengthOf(const Injector& injector, const NamedCause& cause);

}  // namespace tandem::drift
