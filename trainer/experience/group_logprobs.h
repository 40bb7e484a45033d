// GroupLogprobs: log-probs of the completions of some groups by one scorer, and the ways between
// them and packed rows or flat columns. Free of LibTorch and protobuf.
#pragma once

#include <span>
#include <vector>

#include "trainer/experience/experience_batch.h"

namespace tandem::trainer {

// [group in the span that was scored][completion][T]; empty for completions that were not scored,
// NaN on tokens that were given between two turns.
using GroupLogprobs = std::vector<std::vector<std::vector<float>>>;

// Takes the completions of one microbatch over; `logprobs` is in the order of its row.
void TakeRow(const ExperienceBatch& batch, const Microbatch& micro, std::span<const float> logprobs,
             GroupLogprobs& out);

// All tokens of `groups`, completion after completion, [T]; NaN where there is no log-prob.
std::vector<float> Flatten(std::span<const experience::v1::ScoredGroup> groups,
                           const GroupLogprobs& logprobs);

}  // namespace tandem::trainer
