// Judge: the verdict on one side. Cheap statistics first, then settings of samplers, which need no
// forward pass, then replays of suspects on a few rows, then the best of them on other rows. Used by
// referee.cc. Replays are shared by the sides. Use from one thread.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "drift_lab/referee/forward/referee_model.h"
#include "drift_lab/referee/referee.h"
#include "drift_lab/referee/scored_rows.h"
#include "drift_lab/referee/suspects.h"

namespace tandem::drift {

class Judge {
 public:
  // All must outlive the judge. `seconds` says how long the referee has been at it.
  Judge(const RefereeModel& model, const ScoredRows& scored, const RefereeOptions& options,
        const RefereeProgress& progress, std::function<double()> seconds);

  //   errors of RefereeForward
  absl::StatusOr<SideReport> JudgeSide(SignSide side, const SideClaims& claims);

 private:
  struct Candidate;
  struct Part;  // of the scored tokens
  struct Side;

  Side Open(SignSide side, const SideClaims& claims) const;
  Part Between(const Side& side, size_t from, size_t until) const;
  void TryTransforms(Side& side, SideReport& report) const;
  void TrySettings(Side& side, SideReport& report) const;
  absl::Status TrySuspects(Side& side, std::span<const Suspect> suspects, SideReport& report);
  absl::Status TryEmbedding(Side& side, SideReport& report);
  absl::Status TryParts(Side& side, SideReport& report);
  absl::Status Verify(Side& side, SideReport& report);
  void Decide(const Side& side, std::vector<Candidate>& verified, SideReport& report) const;
  absl::StatusOr<const std::vector<TokenLogits>*> Screened(const Suspect& suspect);

  const RefereeModel& model_;
  const ScoredRows& scored_;
  const RefereeOptions& options_;
  const RefereeProgress& progress_;
  const std::function<double()> seconds_;
  const size_t screen_end_, verify_end_;  // rows [0, screen_end_), [screen_end_, verify_end_)
  std::map<std::string, std::vector<TokenLogits>> screened_;
};

}  // namespace tandem::drift
