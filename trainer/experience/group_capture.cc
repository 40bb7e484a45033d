#include "trainer/experience/group_capture.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>

#include "common/model/token_support.h"
#include "trainer/experience/drawn_tokens.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;
using offpolicy::Capture;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename T, typename Field>
void Append(const Field& values, std::vector<T>& column) {
  column.insert(column.end(), values.begin(), values.end());
}

// A field that a server may leave out altogether.
template <typename T, typename Field>
void AppendOr(const Field& values, int num_tokens, T missing, std::vector<T>& column) {
  if (static_cast<int>(values.size()) == num_tokens) {
    Append(values, column);
  } else {
    column.insert(column.end(), static_cast<size_t>(num_tokens), missing);
  }
}

// In either form. A packed one was checked when it came.
void AppendSupport(const rollout::v1::TokenSupport& support, std::vector<uint8_t>& bytes) {
  const std::vector<int32_t> ids(support.ids().begin(), support.ids().end());
  const std::string packed = ids.empty() ? support.packed() : PackedSupport(ids).bytes();
  bytes.insert(bytes.end(), packed.begin(), packed.end());
}

// The reward of each token; mostly the whole one comes with the last.
void AppendTokenRewards(const ScoredCompletion& scored, std::vector<double>& column) {
  const int n = scored.completion().token_ids_size();
  AppendOr(scored.token_rewards(), n, 0.0, column);
  if (scored.token_rewards_size() == 0 && n > 0) column.back() = scored.reward();
}

// Given tokens get the version of the next drawn one.
void AppendVersions(const rollout::v1::Completion& completion, std::vector<int64_t>& column) {
  std::vector<int64_t> versions = VersionsOf(completion);
  if (HasTurns(completion)) {
    const std::vector<int32_t> turns = TurnsOf(completion);
    for (size_t t = turns.size() - 1; t-- > 0;) {
      if (turns[t] == 0) versions[t] = versions[t + 1];
    }
  }
  Append(versions, column);
}

void AppendTokens(const ScoredCompletion& scored, std::span<const float> proximal,
                  std::span<const float> advantages, Capture& c) {
  const rollout::v1::Completion& completion = scored.completion();
  const int n = completion.token_ids_size();
  Append(completion.token_ids(), c.token_ids);
  AppendOr(completion.behaviour_logprobs(), n, kNaN, c.behaviour_logprobs);
  AppendOr(completion.raw_logprobs(), n, kNaN, c.raw_logprobs);
  AppendOr(completion.entropies(), n, kNaN, c.entropies);
  AppendOr(completion.logprob_second_moments(), n, kNaN, c.logprob_second_moments);
  AppendOr(completion.kept_mass(), n, 1.0f, c.kept_mass);
  AppendOr(completion.decode_batch_sizes(), n, int32_t{0}, c.decode_batch_size);
  AppendOr(completion.prefix_cached(), n, uint8_t{0}, c.prefix_cached);
  AppendOr(advantages, n, scored.advantage(), c.advantages);
  AppendOr(proximal, n, kNaN, c.proximal_logprobs);
  AppendVersions(completion, c.weight_version);
  for (int t = 0; t < n; ++t) {
    if (t < completion.support_size()) AppendSupport(completion.support(t), c.packed_support);
    c.packed_support_offsets.push_back(static_cast<int64_t>(c.packed_support.size()));
  }
}

void AppendCompletion(const ScoredCompletion& scored, int32_t group,
                      std::span<const float> proximal, std::span<const float> advantages,
                      Capture& c) {
  const rollout::v1::Completion& completion = scored.completion();
  c.group.push_back(group);
  c.completion_index.push_back(completion.index());
  c.reward.push_back(scored.reward());
  c.masked.push_back(scored.masked());
  c.finish.push_back(static_cast<uint8_t>(completion.finish_reason()));
  c.token_hash.push_back(static_cast<int64_t>(completion.token_hash()));
  c.seed.push_back(static_cast<int64_t>(completion.seed()));
  AppendTokens(scored, proximal, advantages, c);
  c.token_offsets.push_back(c.num_tokens());
}

}  // namespace

std::span<const float> FindTokens(const PerToken& numbers, int64_t group_id, int i) {
  const auto found = numbers.find(group_id);
  if (found == numbers.end() || static_cast<size_t>(i) >= found->second.size()) return {};
  return found->second[static_cast<size_t>(i)];
}

Capture CaptureGroups(const std::vector<ScoredGroup>& groups, const PerToken& proximal,
                      const PerToken& advantages) {
  Capture c;
  c.prompt_offsets.push_back(0);
  c.token_offsets.push_back(0);
  c.packed_support_offsets.push_back(0);
  const bool has_token_rewards = std::ranges::any_of(groups, [](const ScoredGroup& group) {
    return std::ranges::any_of(group.completions(), [](const ScoredCompletion& member) {
      return member.token_rewards_size() > 0;
    });
  });
  const bool has_turns = std::ranges::any_of(groups, [](const ScoredGroup& group) {
    return std::ranges::any_of(group.completions(), [](const ScoredCompletion& member) {
      return HasTurns(member.completion());
    });
  });
  for (const ScoredGroup& group : groups) {
    const auto place = static_cast<int32_t>(c.group_id.size());
    c.group_id.push_back(group.group_id());
    Append(group.prompt().token_ids(), c.prompt_ids);
    c.prompt_offsets.push_back(static_cast<int64_t>(c.prompt_ids.size()));
    for (int i = 0; i < group.completions_size(); ++i) {
      AppendCompletion(group.completions(i), place, FindTokens(proximal, group.group_id(), i),
                       FindTokens(advantages, group.group_id(), i), c);
      if (has_token_rewards) AppendTokenRewards(group.completions(i), c.token_rewards);
      if (has_turns) Append(TurnsOf(group.completions(i).completion()), c.turn);
    }
  }
  return c;
}

offpolicy::CapturedServer DescribeServer(const std::string& address,
                                         const rollout::v1::GetInfoResponse& info) {
  return {address,
          info.server_version(),
          info.dtype(),
          info.numerics(),
          info.instruction_set(),
          info.in_flight(),
          info.weights().empty() ? "dtype" : info.weights(),
          info.lora().empty() ? "merged" : info.lora()};
}

}  // namespace tandem::trainer
