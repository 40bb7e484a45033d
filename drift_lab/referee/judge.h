// Judge: the verdict on one side. Cheap statistics come first, then settings of samplers, which need no
// forward pass. Then every suspect is looked at on a few tokens, the best of them on more, and the
// best of those on other rows. Used by referee.cc. Replays are shared by the sides. Use from one
// thread.
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
#include "drift_lab/referee/verdict.h"

namespace tandem::drift {

class Judge {
 public:
  // All must outlive the judge. `seconds` says how long the referee has been at it.
  Judge(const RefereeModel& model, const ScoredRows& scored, const RefereeOptions& options,
        const RefereeProgress& progress, std::function<double()> seconds);

  // How far a side is from the model: the root mean square of the difference in units of rounding.
  double Distance(SignSide side, const SideClaims& claims) const;

  // `until`: when to stop looking for causes, in `seconds` of the referee.
  //   errors of RefereeForward
  absl::StatusOr<SideReport> JudgeSide(SignSide side, const SideClaims& claims, double until);

 private:
  struct Part;  // of the scored tokens
  struct Side;

  Side Open(SignSide side, const SideClaims& claims) const;
  Part Between(const Side& side, size_t from, size_t until) const;
  Part Glanced(const Side& side) const;
  void TryTransforms(Side& side, SideReport& report) const;
  void TrySettings(Side& side, SideReport& report) const;
  absl::Status TrySuspects(Side& side, std::span<const Suspect> suspects, SideReport& report);
  absl::Status TryForwards(Side& side, SideReport& report);
  absl::Status TryEmbedding(Side& side, SideReport& report);
  absl::Status TryParts(Side& side, SideReport& report);
  absl::Status Verify(Side& side, SideReport& report);
  absl::Status MeasureInItsNoise(const Part& part, std::span<const RefereeRow> rows,
                                 Candidate& candidate) const;
  void PreferSettingsAlone(const Side& side, const Part& part,
                           std::vector<Candidate>& verified) const;
  absl::StatusOr<double> Glance(const Side& side, const Suspect& suspect);
  absl::StatusOr<bool> Screen(Side& side, const Suspect& suspect, SideReport& report);
  static ResidualSize Left(const Side& side, const Part& part,
                           const std::vector<double>& predicted);
  absl::StatusOr<const std::vector<TokenLogits>*> Screened(const Suspect& suspect);
  absl::StatusOr<const std::vector<TokenLogits>*> Replayed(
      const Suspect& suspect, std::span<const RefereeRow> rows,
      std::map<std::string, std::vector<TokenLogits>>& kept) const;

  const RefereeModel& model_;
  const ScoredRows& scored_;
  const RefereeOptions& options_;
  const RefereeProgress& progress_;
  const std::function<double()> seconds_;
  const size_t screen_end_, verify_end_;  // rows [0, screen_end_), [screen_end_, verify_end_)
  const std::vector<RefereeRow> glance_;  // the beginnings of the first rows
  // By the suspect's text.
  std::map<std::string, std::vector<TokenLogits>> glanced_, screened_;
};

}  // namespace tandem::drift
