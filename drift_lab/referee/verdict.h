// Decide: from suspects that were measured on rows which were not used to find them to what is said of
// a side. Used by judge.cc. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "drift_lab/records/records.h"
#include "drift_lab/referee/forward/variant.h"
#include "drift_lab/referee/referee.h"
#include "drift_lab/referee/residuals.h"

namespace tandem::drift {

// What a cause predicts, and how well it did.
struct Candidate {
  std::string cause, text, advice;
  Variant variant;
  SamplerSettings settings;
  bool rounds = false, may_round_inputs = false;  // those of Suspect
  Explained found;                                // on the rows where it was found
  RefereeCause measured;
  std::vector<double> predicted;  // [M] on the other rows, less the referee's own
};

bool ClaimsFloat32(const SideClaims& claims);

// `gap` [M] is the side less the referee, on the rows of `measured`; `num_left` suspects were not
// reached. Sets the status and the causes of `report`: what is named, or those it is one of, or the
// nearest.
void Decide(std::span<const double> gap, const TokenSet& tokens, const SideClaims& claims,
            std::span<const Candidate> verified, SideReport& report);

}  // namespace tandem::drift
