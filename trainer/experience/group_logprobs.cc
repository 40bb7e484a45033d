#include "trainer/experience/group_logprobs.h"

#include <limits>

#include "proto/experience.pb.h"

namespace tandem::trainer {

void TakeRow(const ExperienceBatch& batch, const Microbatch& micro, std::span<const float> logprobs,
             GroupLogprobs& out) {
  for (const int64_t place : micro.row.completion_segments) {
    const Segment& segment = micro.row.segments[static_cast<size_t>(place)];
    const CompletionOrigin& origin =
        batch
            .completions[static_cast<size_t>(micro.completion[static_cast<size_t>(segment.begin)])];
    auto& of_group = out[static_cast<size_t>(origin.group)];
    const auto position = static_cast<size_t>(origin.completion);
    if (of_group.size() <= position) of_group.resize(position + 1);
    of_group[position].assign(logprobs.begin() + segment.begin, logprobs.begin() + segment.end);
    for (int64_t t = segment.begin; t < segment.end; ++t) {
      if (micro.loss_mask[static_cast<size_t>(t)]) continue;  // else it was given
      of_group[position][static_cast<size_t>(t - segment.begin)] =
          std::numeric_limits<float>::quiet_NaN();
    }
  }
}

std::vector<float> Flatten(std::span<const experience::v1::ScoredGroup> groups,
                           const GroupLogprobs& logprobs) {
  std::vector<float> flat;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int c = 0; c < groups[g].completions_size(); ++c) {
      const auto n = static_cast<size_t>(groups[g].completions(c).completion().token_ids_size());
      const auto place = static_cast<size_t>(c);
      const bool known =
          g < logprobs.size() && place < logprobs[g].size() && logprobs[g][place].size() == n;
      if (known) {
        flat.insert(flat.end(), logprobs[g][place].begin(), logprobs[g][place].end());
      } else {
        flat.insert(flat.end(), n, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  return flat;
}

}  // namespace tandem::trainer
