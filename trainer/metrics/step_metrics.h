// Numbers of a train step that need no tensors: rewards, advantages, lengths, staleness, drops, in
// the names of metrics.jsonl (docs/run_directory.md). Pure. Used by trainer.cc.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/weight_version.h"
#include "proto/experience.pb.h"
#include "trainer/experience/experience_buffer.h"
#include "trainer/experience/group_capture.h"
#include "trainer/metrics/metrics_line.h"
#include "trainer/rewards/external/reward_tally.h"

namespace tandem::trainer {

// reward/ and length/ over every completion that was sampled and scored, also of dropped groups;
// staleness/ over the groups that are trained.
void AddGroupMetrics(const StepExperience& step, WeightVersion version, MetricsLine* line);

// reward/ of what external components did since the line before (rewards/reward_queue.h), and the
// share of the completions sampled for the step that have no reward because one of them failed.
void AddExternalRewards(const RewardNumbers& numbers, const GroupViews& sampled, MetricsLine* line);

// advantage/ over the completions that are not masked.
void AddAdvantageMetrics(const std::vector<experience::v1::ScoredGroup>& groups, MetricsLine* line);

// Gives every completion that `trained` knows the mean of its tokens' advantages there, and each
// token its own where they differ.
void TakeTrainedAdvantages(const PerToken& trained,
                           std::vector<experience::v1::ScoredGroup>* groups);

// drops/<reason> for each reason that `dropped` groups and masked completions have.
void AddDropMetrics(const std::vector<experience::v1::ScoredGroup>& groups,
                    const std::vector<DroppedGroup>& dropped, MetricsLine* line);

// Completions of these groups that are masked, by reason.
std::map<std::string, int64_t> MaskedCompletions(
    const std::vector<experience::v1::ScoredGroup>& groups);

// Trained-at less sampled-at version -> tokens of these groups, or of their completions that are
// not masked.
std::map<int64_t, int64_t> TokensByStaleness(const std::vector<experience::v1::ScoredGroup>& groups,
                                             WeightVersion version, bool trained_only = false);

int64_t CountTokens(const GroupViews& groups);

}  // namespace tandem::trainer
