// GroupCapture: scored groups as the columns of a capture (common/capture/capture.h). Used by
// capture_writer.cc and by `tandem drift capture`.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/capture/capture.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"

namespace tandem::trainer {

// Group id -> per completion, in the order of the group, a number per token; may lack entries and
// have empty ones.
using PerToken = std::map<int64_t, std::vector<std::vector<float>>>;

// The values of completion `i` of the group; empty where they are not known.
std::span<const float> FindTokens(const PerToken& numbers, int64_t group_id, int i);

// The columns; the manifest is the caller's. Where `proximal` has nothing stands NaN, and where
// `advantages` (those of the loss) has nothing the completion's own.
offpolicy::Capture CaptureGroups(const std::vector<experience::v1::ScoredGroup>& groups,
                                 const PerToken& proximal, const PerToken& advantages = {});

offpolicy::CapturedServer DescribeServer(const std::string& address,
                                         const rollout::v1::GetInfoResponse& info);

}  // namespace tandem::trainer
