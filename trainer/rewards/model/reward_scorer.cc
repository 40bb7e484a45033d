#include "trainer/rewards/model/reward_scorer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "trainer/preferences/log_sigmoid.h"
#include "trainer/rewards/model/scored_texts.h"
#include "trainer/supervised/supervised_model.h"

namespace tandem::trainer {

struct RewardScorer::Member {
  std::string directory;
  std::unique_ptr<Tokenizer> tokenizer;
  ModelConfig config;
  RewardModelKind kind = RewardModelKind::kOutcome;
  int64_t num_heads = 1;
  int32_t end_token = -1;
  std::unique_ptr<SupervisedModel> model;

  static absl::StatusOr<std::unique_ptr<Member>> Load(const std::string& directory,
                                                      const RewardModelOptions& options);
  absl::StatusOr<LabelledSteps> Encode(const TextToScore& text) const;
  absl::StatusOr<LabelledSteps> EncodeTexts(const TextToScore& text) const;
  absl::Status CheckIds(const std::vector<int32_t>& ids) const;
};

absl::StatusOr<std::unique_ptr<RewardScorer::Member>> RewardScorer::Member::Load(
    const std::string& directory, const RewardModelOptions& options) {
  auto member = std::make_unique<Member>();
  member->directory = directory;
  TANDEM_ASSIGN_OR_RETURN(RewardModel read, ReadRewardModel(directory));
  TANDEM_ASSIGN_OR_RETURN(member->tokenizer, Tokenizer::Load(directory));
  member->kind = read.kind;
  member->config = read.config;
  member->num_heads = read.num_heads();
  const std::vector<int32_t>& ends = read.config.eos_token_ids;
  member->end_token = !ends.empty() ? ends[0] : member->tokenizer->eos_token_id();
  TANDEM_ASSIGN_OR_RETURN(member->model,
                          SupervisedModel::Create({.config = read.config,
                                                   .weights = std::move(read.weights),
                                                   .num_heads = member->num_heads,
                                                   .head = read.head,
                                                   .trainable = false,
                                                   .microbatch_tokens = options.batch_tokens,
                                                   .dtype = options.dtype}));
  return member;
}

absl::Status RewardScorer::Member::CheckIds(const std::vector<int32_t>& ids) const {
  for (const int32_t id : ids) {
    if (id >= 0 && id < config.vocab_size) continue;
    return InvalidArgument("id ", id, " is outside of ", directory, "'s vocabulary of ",
                           config.vocab_size);
  }
  return absl::OkStatus();
}

absl::StatusOr<LabelledSteps> RewardScorer::Member::EncodeTexts(const TextToScore& text) const {
  LabelledSteps encoded;
  if (kind == RewardModelKind::kProcess) {
    TANDEM_ASSIGN_OR_RETURN(encoded, EncodeSteps(text.steps, *tokenizer));
  } else {
    TANDEM_ASSIGN_OR_RETURN(encoded.completion, tokenizer->Encode(absl::StrJoin(text.steps, "")));
    std::vector<int32_t>& ids = encoded.completion;
    const bool is_ended = !ids.empty() && (text.is_truncated || ids.back() == end_token);
    if (end_token >= 0 && !is_ended) ids.push_back(end_token);
    if (ids.empty()) return absl::InvalidArgumentError("the completion has no tokens");
    encoded.step_ends = {static_cast<int64_t>(ids.size())};
  }
  TANDEM_ASSIGN_OR_RETURN(encoded.prompt, tokenizer->Encode(text.prompt));
  if (encoded.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  return encoded;
}

absl::StatusOr<LabelledSteps> RewardScorer::Member::Encode(const TextToScore& text) const {
  LabelledSteps encoded;
  if (text.completion_ids.empty()) {
    TANDEM_ASSIGN_OR_RETURN(encoded, EncodeTexts(text));
  } else {
    encoded.prompt = text.prompt_ids;
    encoded.completion = text.completion_ids;
    encoded.step_ends = {static_cast<int64_t>(encoded.completion.size())};
  }
  TANDEM_RETURN_IF_ERROR(CheckIds(encoded.prompt));
  TANDEM_RETURN_IF_ERROR(CheckIds(encoded.completion));
  const size_t tokens = encoded.prompt.size() + encoded.completion.size();
  if (tokens > static_cast<size_t>(config.max_position_embeddings)) {
    return InvalidArgument(tokens, " tokens are over the context of ",
                           config.max_position_embeddings, " of the reward model ", directory);
  }
  return encoded;
}

RewardScorer::RewardScorer(const RewardModelOptions& options) : options_(options) {}
RewardScorer::~RewardScorer() = default;

absl::StatusOr<std::unique_ptr<RewardScorer>> RewardScorer::Load(
    const RewardModelOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckRewardModelOptions(options));
  std::unique_ptr<RewardScorer> scorer(new RewardScorer(options));
  TANDEM_ASSIGN_OR_RETURN(StepSplitter splitter, StepSplitter::Create(options.split));
  scorer->splitter_ = std::make_unique<StepSplitter>(std::move(splitter));
  for (const std::string& path : options.paths) {
    TANDEM_ASSIGN_OR_RETURN(auto member, Member::Load(path, options));
    if (!scorer->members_.empty() && member->kind != scorer->kind_) {
      return InvalidArgument(options.paths[0], " and ", path,
                             " are an outcome and a process reward model: an ensemble has models "
                             "of one kind");
    }
    scorer->kind_ = member->kind;
    scorer->members_.push_back(std::move(member));
  }
  return scorer;
}

int64_t RewardScorer::num_members() const {
  int64_t heads = 0;
  for (const auto& member : members_) heads += member->num_heads;
  return heads;
}

const Tokenizer& RewardScorer::tokenizer() const { return *members_[0]->tokenizer; }

absl::StatusOr<std::vector<StepRange>> RewardScorer::Split(std::string_view completion) const {
  if (kind_ == RewardModelKind::kProcess) return splitter_->Split(completion);
  return std::vector<StepRange>{{0, completion.size()}};
}

absl::StatusOr<std::vector<std::vector<double>>> RewardScorer::Logits(
    Member& member, std::span<const LabelledSteps> texts) {
  const ScoredTexts objective(texts, member.num_heads, options_.batch_tokens);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> all, member.model->HeadScores(objective));
  std::vector<std::vector<double>> logits;
  auto begin = all.begin();
  for (const LabelledSteps& text : texts) {
    const auto count = static_cast<std::ptrdiff_t>(text.step_ends.size()) * member.num_heads;
    logits.emplace_back(begin, begin + count);
    begin += count;
  }
  return logits;
}

// `by_member` is [directories][places, K], of one text.
ModelReward RewardScorer::Aggregate(const std::vector<std::vector<double>>& by_member,
                                    size_t num_places) const {
  const bool is_process = kind_ == RewardModelKind::kProcess;
  std::vector<double> rewards;  // [members, places]
  ModelReward result;
  for (const std::vector<double>& logits : by_member) {
    const size_t heads = logits.size() / num_places;
    for (size_t k = 0; k < heads; ++k) {
      std::vector<double> own;  // [places]
      for (size_t s = 0; s < num_places; ++s) {
        const double logit = logits[s * heads + k];
        own.push_back(is_process ? Sigmoid(logit) : logit);
      }
      result.members.push_back(is_process ? AggregateSteps(own, options_.steps) : own[0]);
      rewards.insert(rewards.end(), own.begin(), own.end());
    }
  }
  const EnsembleRewards places =
      AggregateEnsemble(rewards, num_members(), options_.ensemble, options_.std_weight);
  result.disagreement = AggregateSteps(places.disagreement, StepAggregation::kMean);
  result.reward = is_process ? AggregateSteps(places.reward, options_.steps) : places.reward[0];
  if (is_process) result.steps = places.reward;
  return result;
}

std::vector<absl::StatusOr<ModelReward>> RewardScorer::Score(std::span<const TextToScore> texts) {
  std::vector<absl::StatusOr<ModelReward>> results(texts.size(), ModelReward());
  std::vector<size_t> scored;  // texts that all members can read
  std::vector<std::vector<LabelledSteps>> encoded(members_.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const bool has_ids = !texts[i].completion_ids.empty();
    if (kind_ == RewardModelKind::kProcess && texts[i].steps.empty() && !has_ids) continue;
    if (has_ids && members_.size() > 1) {
      results[i] = InvalidArgument("token ids for ", members_.size(),
                                   " directories: each has its own tokenizer; send texts");
      continue;
    }
    std::vector<LabelledSteps> of_members;
    absl::Status failed;
    for (const auto& member : members_) {
      auto one = member->Encode(texts[i]);
      failed.Update(one.status());
      if (one.ok()) of_members.push_back(*std::move(one));
    }
    if (!failed.ok()) {
      results[i] = failed;
      continue;
    }
    scored.push_back(i);
    for (size_t m = 0; m < members_.size(); ++m) encoded[m].push_back(std::move(of_members[m]));
  }
  if (scored.empty()) return results;
  std::vector<std::vector<std::vector<double>>> logits;  // [directories][texts][places, K]
  for (size_t m = 0; m < members_.size(); ++m) {
    auto of_member = Logits(*members_[m], encoded[m]);
    if (!of_member.ok()) {
      for (const size_t i : scored) results[i] = of_member.status();
      return results;
    }
    logits.push_back(*std::move(of_member));
  }
  for (size_t t = 0; t < scored.size(); ++t) {
    std::vector<std::vector<double>> of_text;
    for (auto& of_member : logits) of_text.push_back(std::move(of_member[t]));
    results[scored[t]] = Aggregate(of_text, encoded[0][t].step_ends.size());
  }
  return results;
}

}  // namespace tandem::trainer
