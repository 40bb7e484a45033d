// tandem score-rewards: what a reward model says of completions, a JSON line for each line.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/supervised/reward_model_directory.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "common/process/memory.h"
#include "trainer/preferences/log_sigmoid.h"
#include "trainer/preferences/process_reward.h"
#include "trainer/preferences/reward_statistics.h"
#include "trainer/preferences/step_data.h"
#include "trainer/supervised/supervised_model.h"

namespace tandem::cli {
namespace {

using trainer::EnsembleAggregation;
using trainer::LabelledSteps;
using trainer::StepAggregation;
using trainer::SupervisedModel;

struct ScoreFlags {
  std::string model;
  std::string data = "-";
  std::string dtype = "fp32";
  std::string ensemble = "mean";
  double std_weight = 1;
  std::string steps = "min";
  int64_t threads = 0;
};

// One text and the places where the heads read it; no loss.
class OneText : public trainer::SupervisedObjective {
 public:
  OneText(LabelledSteps text, int64_t num_heads) : text_(std::move(text)), num_heads_(num_heads) {}

  int64_t num_examples() const override { return 1; }
  trainer::GroupTokens Example(int64_t /*example*/) const override {
    return {.prompt = text_.prompt, .completions = {text_.completion}};
  }
  int64_t num_heads() const override { return num_heads_; }
  std::vector<trainer::ScorePlace> ScorePlaces(int64_t /*example*/) const override {
    std::vector<trainer::ScorePlace> places;
    for (const int64_t end : text_.step_ends) places.push_back({0, end - 1});
    return places;
  }
  void BeginBatch(std::span<const int64_t> /*examples*/, double /*sum_before*/) override {}
  double Loss(int64_t /*example*/, const trainer::ExampleScores& /*scores*/,
              trainer::ExampleSlopes* /*slopes*/,
              std::span<trainer::MetricSum> /*metrics*/) const override {
    return 0;
  }
  std::vector<std::string> MetricNames() const override { return {}; }

 private:
  const LabelledSteps text_;
  const int64_t num_heads_;
};

EnsembleAggregation EnsembleOf(const std::string& name) {
  if (name == "min") return EnsembleAggregation::kMin;
  return name == "mean" ? EnsembleAggregation::kMean : EnsembleAggregation::kMeanMinusStd;
}

StepAggregation StepsOf(const std::string& name) {
  if (name == "product") return StepAggregation::kProduct;
  if (name == "sum") return StepAggregation::kSum;
  if (name == "mean") return StepAggregation::kMean;
  return name == "last" ? StepAggregation::kLast : StepAggregation::kMin;
}

// Reads lines and answers them with one model.
class RewardScorer {
 public:
  static absl::StatusOr<std::unique_ptr<RewardScorer>> Load(const ScoreFlags& flags) {
    std::unique_ptr<RewardScorer> scorer(new RewardScorer(flags));
    TANDEM_RETURN_IF_ERROR(CheckModelDirectory(flags.model));
    TANDEM_ASSIGN_OR_RETURN(scorer->tokenizer_, Tokenizer::Load(flags.model));
    TANDEM_ASSIGN_OR_RETURN(RewardModel read, ReadRewardModel(flags.model));
    scorer->kind_ = read.kind;
    scorer->config_ = read.config;
    scorer->num_heads_ = read.num_heads();
    const std::vector<int32_t>& ends = read.config.eos_token_ids;
    scorer->end_token_ = !ends.empty() ? ends[0] : scorer->tokenizer_->eos_token_id();
    KeepFreedMemory();
    SupervisedModel::UseThreads(flags.threads);
    TANDEM_ASSIGN_OR_RETURN(
        scorer->model_,
        SupervisedModel::Create(
            {.config = read.config,
             .weights = std::move(read.weights),
             .num_heads = scorer->num_heads_,
             .head = read.head,
             .trainable = false,
             .dtype = flags.dtype == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32}));
    return scorer;
  }

  absl::StatusOr<std::string> Answer(const nlohmann::json& line) {
    TANDEM_ASSIGN_OR_RETURN(LabelledSteps text, Encode(line));
    const auto tokens = static_cast<int64_t>(text.prompt.size() + text.completion.size());
    if (tokens > config_.max_position_embeddings) {
      return InvalidArgument(tokens, " tokens are over the model's context of ",
                             config_.max_position_embeddings);
    }
    const OneText one(std::move(text), num_heads_);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<float> scores, model_->HeadScores(one));
    return kind_ == RewardModelKind::kProcess ? OfSteps(scores) : OfHeads(scores);
  }

 private:
  explicit RewardScorer(const ScoreFlags& flags) : flags_(flags) {}

  // {"ids", "num_prompt_tokens"}, or a prompt (text or messages) with a completion or steps.
  absl::StatusOr<LabelledSteps> Encode(const nlohmann::json& line) const {
    if (line.contains("ids")) return EncodeIds(line);
    const nlohmann::json prompt = line.value("prompt", nlohmann::json());
    if (!prompt.is_string() && !prompt.is_array()) {
      return absl::InvalidArgumentError(
          "want \"prompt\" (a text or messages) with \"completion\" or \"steps\", or \"ids\" with "
          "\"num_prompt_tokens\"");
    }
    LabelledSteps text;
    if (kind_ == RewardModelKind::kProcess) {
      if (!line.contains("steps") || !line["steps"].is_array() || line["steps"].empty()) {
        return absl::InvalidArgumentError(
            "want \"steps\", a list of texts: this is a process "
            "reward model");
      }
      std::vector<std::string> steps;
      for (const auto& step : line["steps"]) {
        if (!step.is_string()) return absl::InvalidArgumentError("\"steps\": want texts");
        steps.push_back(step.get<std::string>());
      }
      TANDEM_ASSIGN_OR_RETURN(text, trainer::EncodeSteps(steps, *tokenizer_));
    } else {
      TANDEM_ASSIGN_OR_RETURN(const std::string completion, TextField(line, "completion"));
      TANDEM_ASSIGN_OR_RETURN(text.completion, tokenizer_->Encode(completion));
      if (end_token_ >= 0 && (text.completion.empty() || text.completion.back() != end_token_)) {
        text.completion.push_back(end_token_);
      }
      text.step_ends = {static_cast<int64_t>(text.completion.size())};
    }
    TANDEM_ASSIGN_OR_RETURN(
        text.prompt, trainer::EncodePrompt(prompt.is_string() ? prompt.get<std::string>() : "",
                                           prompt.is_string() ? "" : prompt.dump(), *tokenizer_));
    return text;
  }

  absl::StatusOr<LabelledSteps> EncodeIds(const nlohmann::json& line) const {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsField(line, "ids"));
    const int64_t prompt = line.value("num_prompt_tokens", int64_t{1});
    const auto count = static_cast<int64_t>(ids.size());
    if (prompt < 1 || prompt >= count) {
      return InvalidArgument("\"num_prompt_tokens\" is ", prompt, " of ", count,
                             " ids; want at least 1 and fewer than there are");
    }
    LabelledSteps text;
    text.prompt.assign(ids.begin(), ids.begin() + prompt);
    text.completion.assign(ids.begin() + prompt, ids.end());
    text.step_ends = {count - prompt};
    return text;
  }

  std::string OfHeads(const std::vector<float>& scores) const {
    const std::vector<double> rewards(scores.begin(), scores.end());
    const trainer::EnsembleRewards one = trainer::AggregateEnsemble(
        rewards, num_heads_, EnsembleOf(flags_.ensemble), flags_.std_weight);
    const float reward = static_cast<float>(one.reward[0]);
    const float disagreement = static_cast<float>(one.disagreement[0]);
    std::string json = absl::StrCat("{\"reward\":", Number(reward));
    if (num_heads_ > 1) {
      absl::StrAppend(&json, ",\"rewards\":", FloatsToJson(scores),
                      ",\"disagreement\":", Number(disagreement));
    }
    return json + "}";
  }

  // Probabilities that the steps are right.
  std::string OfSteps(const std::vector<float>& scores) const {
    std::vector<double> probabilities;
    std::vector<float> shown;
    for (const float score : scores) {
      probabilities.push_back(trainer::Sigmoid(score));
      shown.push_back(static_cast<float>(probabilities.back()));
    }
    const double reward = trainer::AggregateSteps(probabilities, StepsOf(flags_.steps));
    return absl::StrCat("{\"reward\":", Number(static_cast<float>(reward)),
                        ",\"steps\":", FloatsToJson(shown), "}");
  }

  static std::string Number(float value) {
    const std::string list = FloatsToJson(std::span(&value, 1));
    return list.substr(1, list.size() - 2);
  }

  const ScoreFlags& flags_;
  std::unique_ptr<Tokenizer> tokenizer_;
  RewardModelKind kind_ = RewardModelKind::kOutcome;
  ModelConfig config_;
  int64_t num_heads_ = 1;
  int32_t end_token_ = -1;
  std::unique_ptr<SupervisedModel> model_;
};

absl::Status ScoreRewards(const ScoreFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(flags.data));
  TANDEM_ASSIGN_OR_RETURN(const auto scorer, RewardScorer::Load(flags));
  return reader->ForEach([&](nlohmann::json line) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const std::string answer, scorer->Answer(line));
    PrintLine(answer);
    return absl::OkStatus();
  });
}

}  // namespace

void AddScoreRewardsCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* sub = app.add_subcommand("score-rewards", "Rewards of completions by a reward model");
  sub->add_option("--model", flags->model, "directory of train-reward-model or transformers")
      ->required();
  sub->add_option("--data", flags->data,
                  "JSON lines: prompt with completion, or with steps for a process reward model, "
                  "or ids with num_prompt_tokens; -: standard input")
      ->capture_default_str();
  AddChoice(sub, "--dtype", flags->dtype, {"fp32", "bf16"}, "compute dtype");
  AddChoice(sub, "--ensemble", flags->ensemble, {"mean", "min", "mean_minus_std"},
            "how the rewards of several heads become one");
  AddNonNegative(sub, "--std-weight", flags->std_weight,
                 "of mean_minus_std: how often the standard deviation is taken off");
  AddChoice(sub, "--steps", flags->steps, {"min", "product", "sum", "mean", "last"},
            "how the probabilities of steps become a reward");
  AddThreadsFlag(sub, flags->threads);
  EndHelp(*sub, "", "tandem score-rewards --model rm --data completions.jsonl");
  SetAction(*sub, chosen, [flags] { return Finish(ScoreRewards(*flags)); });
}

}  // namespace tandem::cli
