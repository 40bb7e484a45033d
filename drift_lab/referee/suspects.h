// Suspects: what the referee tries as the cause of a side's difference: variants of the forward pass
// with their grids of strengths, most common faults first. Settings of samplers are tried apart
// (settings_search.h). Pure but for the tokenizer's files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "drift_lab/referee/forward/referee_forward.h"
#include "drift_lab/referee/forward/referee_model.h"
#include "drift_lab/referee/forward/variant.h"

namespace tandem::drift {

struct Suspect {
  std::string cause;  // suspects of one cause do not compete: "rms_norm_eps", "quantised_weights"
  std::string text;   // "rms_norm_eps 0.001 in place of 1e-05"
  std::string advice;
  Variant variant;
  bool rounds = false;  // a rounding, which another engine need not do number by number alike
  // The engine may round to int8 what matrices multiply, too. What that does cannot be replayed number
  // by number, because a different last bit anywhere changes it; its size can.
  bool may_round_inputs = false;
};

// The weights of the second directory, and those part of the way to them; none if there is none.
std::vector<Suspect> OtherWeights(const RefereeModel& model);

// All others. `rows` are those of the records, whose prompts suggest what can be missing.
std::vector<Suspect> ForwardSuspects(const RefereeModel& model, std::span<const RefereeRow> rows);

// The few that hide in what bf16 gives: roundings, and the weights of the second directory.
std::vector<Suspect> HiddenSuspects(const RefereeModel& model);

// A rounding of weights, with the embedding and the head rounded too.
Suspect WithEmbedding(const Suspect& suspect);

// One suspect for each layer, for the embedding, the head and the last norm, from the second directory.
std::vector<Suspect> PartsOfOther(const RefereeModel& model);

// One suspect for all parts in `parts`, which are PartsOfOther's.
Suspect JoinParts(const RefereeModel& model, std::span<const Suspect> parts,
                  const std::vector<bool>& chosen);

}  // namespace tandem::drift
