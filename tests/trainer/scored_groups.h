// ScoredGroups for tests: groups as the trainer holds them after stage 3, valid in every field.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "common/weights/digest.h"
#include "proto/experience.pb.h"

namespace tandem::testing {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;

inline ScoredGroup GroupWithPrompt(int64_t id, const std::vector<int32_t>& prompt) {
  ScoredGroup group;
  group.set_group_id(id);
  for (const int32_t token : prompt) group.mutable_prompt()->add_token_ids(token);
  return group;
}

// Behaviour log-probs are all `behaviour`; the version is 0.
inline ScoredCompletion* AddCompletion(ScoredGroup& group, const std::vector<int32_t>& ids,
                                       float advantage, float behaviour = -1.0f) {
  ScoredCompletion* scored = group.add_completions();
  auto* completion = scored->mutable_completion();
  completion->set_index(group.completions_size() - 1);
  for (const int32_t token : ids) {
    completion->add_token_ids(token);
    completion->add_behaviour_logprobs(behaviour);
    completion->add_raw_logprobs(behaviour);
    completion->add_entropies(1.0f);
    completion->add_logprob_second_moments(1.5f);
  }
  completion->add_version_spans()->set_num_tokens(static_cast<int32_t>(ids.size()));
  completion->set_token_hash(HashTokenIds(ids));
  completion->set_finish_reason(rollout::v1::FINISH_REASON_STOP);
  scored->set_advantage(advantage);
  return scored;
}

// Makes the completion one of several turns: `lengths` of what was drawn and given by turns. Given
// tokens have no numbers.
inline ScoredCompletion* CutIntoTurns(ScoredCompletion* scored, const std::vector<int>& lengths) {
  constexpr float kNotDrawn = std::numeric_limits<float>::quiet_NaN();
  auto* completion = scored->mutable_completion();
  int t = 0, drawn = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const bool given = i % 2 == 1;
    auto* const segment = completion->add_segments();
    segment->set_given(given);
    segment->set_num_tokens(lengths[i]);
    for (int end = t + lengths[i]; t < end; ++t) {
      drawn += !given;
      if (!given) continue;
      completion->set_behaviour_logprobs(t, kNotDrawn);
      completion->set_raw_logprobs(t, kNotDrawn);
      completion->set_entropies(t, kNotDrawn);
      completion->set_logprob_second_moments(t, kNotDrawn);
    }
  }
  completion->mutable_version_spans(0)->set_num_tokens(drawn);
  return scored;
}

}  // namespace tandem::testing
