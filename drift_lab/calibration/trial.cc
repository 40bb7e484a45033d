#include "drift_lab/calibration/trial.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "drift_lab/ablation/attribution.h"
#include "drift_lab/calibration/injectors.h"

namespace tandem::drift {
namespace {

// A seed per trial, so that prompts and samples do not depend on the rest of the plan.
uint64_t SeedOf(const PlannedTrial& trial) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : absl::StrCat(trial.fault, "/", trial.strength, "/", trial.seed)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash >> 20;
}

TrialResult Summarise(const Attribution& attribution) {
  TrialResult result{.comparable = attribution.findings.empty(),
                     .num_tokens = attribution.capture.num_tokens()};
  if (!result.comparable) return result;
  for (const NamedCause& cause : attribution.verdict.named) {
    result.named.push_back({std::string(PartName(cause.part)), cause.share.value, cause.strength});
  }
  result.open = !attribution.verdict.open.empty();
  result.unexplained = attribution.verdict.unexplained.value;
  result.mean_abs = attribution.by_group.Number("mean_abs_delta").interval;
  result.k3 = attribution.by_group.Number("k3").interval;
  return result;
}

}  // namespace

std::vector<PlannedTrial> PlanTrials(const CalibrationGrid& grid) {
  std::vector<PlannedTrial> plan;
  const auto wanted = [&](const std::string& name) {
    return grid.faults.empty() || std::ranges::find(grid.faults, name) != grid.faults.end();
  };
  const auto add = [&](std::string name, double strength, int captures) {
    if (!wanted(name)) return;
    for (int seed = 1; seed <= captures; ++seed) {
      plan.push_back({name, strength, static_cast<uint64_t>(seed)});
    }
  };
  add("none", 0, grid.healthy);
  for (const Injector& injector : AllInjectors()) {
    const int strengths = static_cast<int>(injector.strengths.size());
    for (const double strength : injector.strengths) {
      add(std::string(injector.name), strength, (grid.captures + strengths - 1) / strengths);
    }
  }
  for (const InjectorPair& pair : AllPairs()) {
    add(absl::StrCat(pair.first, "+", pair.second), 1, std::max(1, grid.captures / 8));
  }
  for (const UnmodelledFault& fault : AllUnmodelled()) {
    add(std::string(fault.name), 1, std::max(1, grid.captures / 4));
  }
  return plan;
}

absl::StatusOr<Fault> FaultOf(const PlannedTrial& trial) {
  Fault fault;
  if (trial.fault == "none") return fault;
  for (const UnmodelledFault& unmodelled : AllUnmodelled()) {
    if (unmodelled.name != trial.fault) continue;
    fault.unmodelled = unmodelled.kind;
    fault.amount = unmodelled.amount;
    return fault;
  }
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(trial.fault, '+'))) {
    const Injector* const injector = InjectorNamed(name);
    if (injector == nullptr) return NotFound("no injector \"", name, "\"");
    injector->Set(trial.strength, fault);
  }
  return fault;
}

absl::StatusOr<TrialResult> TrialMaker::Make(const PlannedTrial& trial) {
  const double start = MonotonicSeconds();
  TANDEM_ASSIGN_OR_RETURN(const Fault fault, FaultOf(trial));
  if (server_ == nullptr || served_fault_ != trial.fault || served_strength_ != trial.strength) {
    TANDEM_ASSIGN_OR_RETURN(server_, subject_.Serve(fault));
    served_fault_ = trial.fault;
    served_strength_ = trial.strength;
  }
  const uint64_t seed = SeedOf(trial);
  TANDEM_ASSIGN_OR_RETURN(offpolicy::Capture capture,
                          subject_.Sample(*server_, fault, shape_, seed));
  AttributionOptions options{.capture = subject_.capture_path(), .seed = seed, .num_threads = 1};
  options.model = subject_.model();
  options.bootstrap_replicates = 400;
  TANDEM_ASSIGN_OR_RETURN(
      const Attribution attribution,
      AttributeCapture(std::move(capture), options, [](const std::string&, double) {}));
  TrialResult result = Summarise(attribution);
  result.seconds = MonotonicSeconds() - start;
  return result;
}

}  // namespace tandem::drift
