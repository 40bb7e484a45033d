// How a reference policy that is not frozen follows the policy (trainer.reference). Used by
// train_step.cc after each train step.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "trainer/optimizer/placed_policy.h"
#include "trainer/step/reference_options.h"

namespace tandem::trainer {

// Moves the reference after train step number `steps_done` (from 1) and returns whether it became
// the policy's weights. Both models are placed alike; each rank moves its own slices. Errors: those
// of the collective; INTERNAL: the device failed.
absl::StatusOr<bool> MoveReference(const ReferenceOptions& options, int64_t steps_done,
                                   PlacedPolicy& policy, PlacedPolicy& reference);

}  // namespace tandem::trainer
