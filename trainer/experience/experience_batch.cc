#include "trainer/experience/experience_batch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/token_support.h"
#include "common/weights/digest.h"
#include "proto/experience.pb.h"
#include "trainer/experience/drawn_tokens.h"
#include "trainer/experience/group_check.h"
#include "trainer/experience/row_plan.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;
using rollout::v1::Completion;

template <typename Repeated>
std::span<const typename Repeated::value_type> View(const Repeated& field) {
  return {field.data(), static_cast<size_t>(field.size())};
}

absl::Status CheckIds(std::span<const int32_t> ids, int64_t vocab_size, const std::string& where) {
  if (ids.empty()) return InvalidArgument(where, ": no tokens");
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument(where, ": token id ", id, " outside the vocabulary of ", vocab_size);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSpans(const Completion& completion, const std::string& where) {
  int64_t version = 0;
  for (const auto& span : completion.version_spans()) {
    if (span.num_tokens() < 1 || span.weight_version() < version) {
      return InvalidArgument(where, ": version span of ", span.num_tokens(), " tokens of version ",
                             span.weight_version(), " after version ", version);
    }
    version = span.weight_version();
  }
  return CheckSegments(completion, where);
}

// Every token with rising ids of the vocabulary among which it is, or none at all.
absl::Status CheckSupport(const Completion& completion, int64_t vocab_size,
                          const std::string& where) {
  if (completion.support().empty()) return absl::OkStatus();
  if (completion.support_size() != completion.token_ids_size()) {
    return InvalidArgument(where, ": ", completion.token_ids_size(), " tokens with ",
                           completion.support_size(), " supports");
  }
  std::vector<int32_t> ids;
  for (int t = 0; t < completion.token_ids_size(); ++t) {
    const auto& support = completion.support(t);
    ids.assign(support.ids().begin(), support.ids().end());
    const absl::Status unpacked = UnpackSupport(support.packed(), vocab_size, &ids);
    if (!unpacked.ok()) {
      return InvalidArgument(where, ", token ", t, ": ", unpacked.message());
    }
    if (ids.empty()) continue;
    const bool rising = std::ranges::is_sorted(ids, std::less_equal<>());
    if (!rising || ids.front() < 0 || ids.back() >= vocab_size ||
        !std::ranges::binary_search(ids, completion.token_ids(t))) {
      return InvalidArgument(where, ": the support of token ", t, " is not rising ids below ",
                             vocab_size, " with ", completion.token_ids(t), " among them");
    }
  }
  return absl::OkStatus();
}

// Rewards and advantages: one of the completion, or one of each token.
absl::Status CheckWorth(const ScoredCompletion& scored, const std::string& where) {
  const int length = scored.completion().token_ids_size();
  for (const auto& [size, name] : {std::pair(scored.token_rewards_size(), "rewards"),
                                   std::pair(scored.token_advantages_size(), "advantages")}) {
    if (size != 0 && size != length) {
      return InvalidArgument(where, ": ", length, " tokens with ", size, " ", name,
                             "; there must be one for each token, or none");
    }
  }
  const auto is_finite = [](double value) { return std::isfinite(value); };
  if (!is_finite(scored.advantage()) ||
      !std::ranges::all_of(scored.token_advantages(), is_finite)) {
    return InvalidArgument(where, ": advantage ", scored.advantage(), " is not finite");
  }
  const std::vector<int32_t> turns = TurnsOf(scored.completion());
  for (int t = 0; t < scored.token_rewards_size(); ++t) {
    if (turns[static_cast<size_t>(t)] != 0 || scored.token_rewards(t) == 0) continue;
    return InvalidArgument(where, ": token ", t, " was given to the model and has reward ",
                           scored.token_rewards(t), "; it belongs to the end of the turn before");
  }
  if (scored.masked()) return absl::OkStatus();
  if (!is_finite(scored.reward()) || !std::ranges::all_of(scored.token_rewards(), is_finite)) {
    return InvalidArgument(where, ": reward ", scored.reward(), " is not finite");
  }
  return absl::OkStatus();
}

absl::Status CheckCompletionArrays(const ScoredCompletion& scored, int64_t vocab_size,
                                   const std::string& where) {
  const Completion& completion = scored.completion();
  TANDEM_RETURN_IF_ERROR(CheckIds(View(completion.token_ids()), vocab_size, where));
  const int length = completion.token_ids_size();
  // A foreign server gives neither of the last two.
  const auto is_whole = [&](int size) { return size == length || size == 0; };
  if (completion.behaviour_logprobs_size() != length || !is_whole(completion.entropies_size()) ||
      !is_whole(completion.logprob_second_moments_size())) {
    return InvalidArgument(where, ": ", length, " tokens with ",
                           completion.behaviour_logprobs_size(), " behaviour log-probs, ",
                           completion.entropies_size(), " entropies, ",
                           completion.logprob_second_moments_size(), " second moments");
  }
  const uint64_t hash = HashTokenIds(View(completion.token_ids()));
  if (completion.token_hash() != 0 && completion.token_hash() != hash) {
    return InvalidArgument(where, ": token ids have hash ", hash, " but were sampled with hash ",
                           completion.token_hash(),
                           ": they were changed or made anew from text on the way");
  }
  TANDEM_RETURN_IF_ERROR(CheckSpans(completion, where));
  TANDEM_RETURN_IF_ERROR(CheckSupport(completion, vocab_size, where));
  return CheckWorth(scored, where);
}

absl::Status CheckScoredGroup(const ScoredGroup& group, int64_t vocab_size) {
  const std::string name = absl::StrCat("group ", group.group_id());
  TANDEM_RETURN_IF_ERROR(
      CheckIds(View(group.prompt().token_ids()), vocab_size, absl::StrCat(name, ": prompt")));
  std::set<int> indices;
  for (const ScoredCompletion& scored : group.completions()) {
    const int index = scored.completion().index();
    const std::string where = absl::StrCat(name, ", completion ", index);
    if (!indices.insert(index).second) {
      return InvalidArgument(where, ": twice in its group");
    }
    TANDEM_RETURN_IF_ERROR(CheckCompletionArrays(scored, vocab_size, where));
  }
  return absl::OkStatus();
}

// A support in either of its two forms; both are empty when it is all ids.
SupportView ViewOf(const rollout::v1::TokenSupport& support) {
  if (!support.packed().empty()) return SupportView::OfBytes(support.packed());
  return View(support.ids());
}

// What is to be packed: masked completions are left out.
std::vector<GroupLengths> LengthsOf(std::span<const ScoredGroup> groups) {
  std::vector<GroupLengths> all;
  for (const ScoredGroup& group : groups) {
    GroupLengths& lengths = all.emplace_back();
    lengths.prompt = group.prompt().token_ids_size();
    for (const ScoredCompletion& scored : group.completions()) {
      lengths.completions.push_back(scored.masked() ? 0 : scored.completion().token_ids_size());
    }
  }
  return all;
}

// Tokens a row may hold: PackOptions says why it may be fewer than microbatch_tokens.
int64_t RowBudget(std::span<const GroupLengths> groups, int64_t begin, int64_t end,
                  const PackOptions& options) {
  if (options.num_ranks == 1) return options.microbatch_tokens;
  int64_t total = 0, largest = 0;
  for (int64_t g = begin; g < end; ++g) {
    for (const GroupPart& part : SplitGroup(groups[static_cast<size_t>(g)], g,
                                            options.microbatch_tokens, options.whole_groups)) {
      total += part.num_tokens;
      largest = std::max(largest, part.num_tokens);
    }
  }
  const int64_t share = (total + options.num_ranks - 1) / options.num_ranks;
  return std::min(options.microbatch_tokens, std::max(share, largest));
}

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

// Copies one completion's arrays to where its segment lies in the row. Given tokens are context:
// their elements stay 0, and no log-prob is wanted.
void PlaceCompletion(const ScoredCompletion& scored, const Segment& segment, int32_t number,
                     Microbatch& micro) {
  const Completion& completion = scored.completion();
  const std::vector<int32_t> turns = TurnsOf(completion);
  const std::vector<int64_t> versions = VersionsOf(completion);
  for (int64_t t = segment.begin; t < segment.end; ++t) {
    const int i = static_cast<int>(t - segment.begin);
    micro.completion[t] = number;
    micro.turns[t] = turns[static_cast<size_t>(i)];
    if (micro.turns[t] == 0) {
      micro.row.is_target[static_cast<size_t>(t)] = false;
      continue;
    }
    micro.loss_mask[t] = 1;
    micro.behaviour_logprobs[t] = completion.behaviour_logprobs(i);
    micro.rewards[t] = scored.token_rewards_size() > 0 ? scored.token_rewards(i) : 0;
    micro.advantages[t] =
        scored.token_advantages_size() > 0 ? scored.token_advantages(i) : scored.advantage();
    micro.entropies[t] = i < completion.entropies_size() ? completion.entropies(i) : kUnknown;
    micro.logprob_second_moments[t] = i < completion.logprob_second_moments_size()
                                          ? completion.logprob_second_moments(i)
                                          : kUnknown;
    micro.weight_versions[t] = versions[static_cast<size_t>(i)];
  }
  if (scored.token_rewards_size() == 0) micro.rewards[segment.end - 1] = scored.reward();
  ++micro.num_completions;
  micro.num_trained_tokens += NumDrawn(completion);
}

absl::StatusOr<Microbatch> PackMicrobatch(std::span<const ScoredGroup> groups,
                                          const std::vector<GroupPart>& parts, int64_t number,
                                          std::vector<CompletionOrigin>& completions) {
  std::vector<GroupTokens> tokens;
  for (const GroupPart& part : parts) {
    const ScoredGroup& group = groups[static_cast<size_t>(part.group)];
    GroupTokens& of_group =
        tokens.emplace_back(GroupTokens{.prompt = View(group.prompt().token_ids())});
    for (const int64_t i : part.completions) {
      const Completion& completion = group.completions(static_cast<int>(i)).completion();
      of_group.completions.push_back(View(completion.token_ids()));
      auto& support = of_group.support.emplace_back();
      for (const auto& of_token : completion.support()) support.push_back(ViewOf(of_token));
    }
  }
  Microbatch micro;
  TANDEM_ASSIGN_OR_RETURN(micro.row, PackRow(tokens));
  const auto length = static_cast<size_t>(micro.row.num_tokens());
  micro.loss_mask.resize(length);
  micro.behaviour_logprobs.resize(length);
  micro.rewards.resize(length);
  micro.advantages.resize(length);
  micro.entropies.resize(length);
  micro.logprob_second_moments.resize(length);
  micro.weight_versions.resize(length);
  micro.turns.resize(length);
  micro.completion.assign(length, -1);
  auto place = micro.row.completion_segments.begin();
  for (const GroupPart& part : parts) {
    const ScoredGroup& group = groups[static_cast<size_t>(part.group)];
    for (const int64_t i : part.completions) {
      const ScoredCompletion& scored = group.completions(static_cast<int>(i));
      const Segment& segment = micro.row.segments[static_cast<size_t>(*place++)];
      PlaceCompletion(scored, segment, static_cast<int32_t>(completions.size()), micro);
      completions.push_back({.group = part.group,
                             .completion = i,
                             .reward = scored.reward(),
                             .truncated = IsTruncated(scored.completion()),
                             .microbatch = number,
                             .begin = segment.begin,
                             .end = segment.end});
    }
  }
  return micro;
}

}  // namespace

absl::StatusOr<ExperienceBatch> PackBatch(std::span<const ScoredGroup> groups,
                                          const PackOptions& options) {
  int64_t num_groups = 0;  // with something to train
  for (const ScoredGroup& group : groups) {
    TANDEM_RETURN_IF_ERROR(CheckScoredGroup(group, options.vocab_size));
    num_groups += HasTrainedCompletion(group);
  }
  if (num_groups == 0) {
    return FailedPrecondition("none of ", groups.size(),
                              " groups has a completion to train: all are masked");
  }
  const int64_t num_minibatches = std::min(options.num_minibatches, num_groups);
  const std::vector<GroupLengths> lengths = LengthsOf(groups);
  ExperienceBatch batch;
  int64_t next = 0, passed = 0;
  for (int64_t m = 0; m < num_minibatches; ++m) {
    const int64_t begin = next;
    const int64_t until = num_groups * (m + 1) / num_minibatches;
    for (; passed < until; ++next) passed += HasTrainedCompletion(groups[next]);
    Minibatch mini{.begin = static_cast<int64_t>(batch.microbatches.size())};
    const int64_t budget = RowBudget(lengths, begin, next, options);
    for (const auto& parts : FillRows(lengths, begin, next, budget, options.whole_groups)) {
      const auto number = static_cast<int64_t>(batch.microbatches.size());
      TANDEM_ASSIGN_OR_RETURN(Microbatch micro,
                              PackMicrobatch(groups, parts, number, batch.completions));
      batch.num_trained_tokens += micro.num_trained_tokens;
      batch.microbatches.push_back(std::move(micro));
    }
    mini.end = static_cast<int64_t>(batch.microbatches.size());
    batch.minibatches.push_back(mini);
  }
  return batch;
}

std::vector<int> AssignRanks(const ExperienceBatch& batch, int num_ranks) {
  std::vector<int> ranks(batch.microbatches.size());
  for (const Minibatch& mini : batch.minibatches) {
    std::vector<size_t> order(static_cast<size_t>(mini.end - mini.begin));
    std::iota(order.begin(), order.end(), static_cast<size_t>(mini.begin));
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](size_t m) { return batch.microbatches[m].row.num_tokens(); });
    std::vector<int64_t> tokens(static_cast<size_t>(num_ranks));
    for (const size_t m : order) {
      const auto least = std::ranges::min_element(tokens);
      ranks[m] = static_cast<int>(least - tokens.begin());
      *least += batch.microbatches[m].row.num_tokens();
    }
  }
  return ranks;
}

}  // namespace tandem::trainer
