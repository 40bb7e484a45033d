#include "trainer/drift/step_split.h"

#include <limits>
#include <span>
#include <string>

#include "common/capture/capture.h"
#include "trainer/experience/drawn_tokens.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;

}  // namespace

StepSplit::StepSplit(const std::vector<ScoredGroup>& groups, int64_t version, bool server_casts)
    : groups_(groups), version_(version), server_casts_(server_casts) {
  for (const ScoredGroup& group : groups) {
    group_begin_.push_back(token_version_.size());
    for (const auto& member : group.completions()) {
      // Those of given tokens count for nothing: they are masked.
      const std::vector<int64_t> versions = VersionsOf(member.completion());
      token_version_.insert(token_version_.end(), versions.begin(), versions.end());
      for (const auto& span : member.completion().version_spans()) {
        if (!member.masked()) versions_.insert(span.weight_version());
      }
    }
  }
  for (std::vector<float>* column : {&engine_, &cast_, &masters_}) {
    column->assign(token_version_.size(), std::numeric_limits<float>::quiet_NaN());
  }
}

std::vector<size_t> StepSplit::GroupsOf(int64_t version) const {
  std::vector<size_t> places;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t end = g + 1 < group_begin_.size() ? group_begin_[g + 1] : token_version_.size();
    for (size_t t = group_begin_[g]; t < end; ++t) {
      if (token_version_[t] != version) continue;
      places.push_back(g);
      break;
    }
  }
  return places;
}

void StepSplit::Take(Scorer scorer, int64_t version, const std::vector<size_t>& places,
                     const GroupLogprobs& logprobs) {
  std::vector<float>& column = scorer == kEngine ? engine_ : scorer == kCast ? cast_ : masters_;
  for (size_t i = 0; i < places.size(); ++i) {
    const std::vector<float> flat =
        Flatten(std::span(groups_).subspan(places[i], 1), {logprobs[i]});
    for (size_t t = 0; t < flat.size(); ++t) {
      const size_t at = group_begin_[places[i]] + t;
      if (token_version_[at] == version) column[at] = flat[t];
    }
  }
}

offpolicy::AdditiveSplit StepSplit::Join(const PerToken& proximal) const {
  const offpolicy::Capture columns = CaptureGroups(groups_, proximal);
  const offpolicy::CaptureRecord extra = MakeCaptureRecord(columns);
  std::vector<float> masters = masters_, cast = cast_;
  for (size_t t = 0; t < masters.size(); ++t) {
    if (token_version_[t] == version_) masters[t] = columns.proximal_logprobs[t];
    if (!server_casts_) cast[t] = masters[t];
  }
  return ComputeAdditiveSplit(RecordOf(columns, extra), {engine_, cast, masters});
}

void AddSplit(const offpolicy::AdditiveSplit& split, MetricsLine* line) {
  line->AddCount("drift/split/tokens", split.num_tokens);
  line->AddCount("drift/split/missing_tokens", split.num_missing);
  if (split.num_tokens == 0) return;
  line->AddInterval("drift/split/mean_delta", split.mean_delta);
  for (int i = 0; i < offpolicy::kNumSplitParts; ++i) {
    const offpolicy::SplitPartNumbers& part = split.parts[static_cast<size_t>(i)];
    const std::string name =
        "drift/split/" + std::string(SplitPartName(static_cast<offpolicy::SplitPart>(i)));
    line->AddInterval(name + "_mean", part.mean);
    line->AddInterval(name + "_mean_abs", part.mean_abs);
    line->AddInterval(name + "_square_share", part.square_share);
  }
}

}  // namespace tandem::trainer
