// tandem train-reward-model: outcome reward models on pairs, and process reward models on steps.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/supervised/reward_model_directory.h"
#include "cli/supervised/reward_report.h"
#include "cli/supervised/supervised_session.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "trainer/critic/critic_options.h"
#include "trainer/preferences/reward_model_loss.h"
#include "trainer/supervised/objectives/reward_objective.h"
#include "trainer/supervised/objectives/step_objective.h"
#include "trainer/supervised/reference_logprobs.h"

namespace tandem::cli {
namespace {

using trainer::SupervisedModel;

struct RewardFlags {
  SupervisedFlags common;
  trainer::RewardModelLossOptions loss;
  int64_t heads = 1;
  bool process = false;
};

// A head of K rows, normal with standard deviation 1 / sqrt(E + 1) as in Stiennon et al. 2020
// (arXiv 2009.01325), so that rewards start with a spread of about one. Each row has numbers of its
// own.
HostTensor FreshHead(int64_t num_heads, int64_t width, int64_t seed) {
  RandomNormal stream(StableHash({static_cast<uint64_t>(seed), 0x68656164}));  // "head"
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(num_heads * width));
  const auto deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(width + 1)));
  for (float& value : *values) value = deviation * stream.Next();
  return {{trainer::kScoreWeight, DType::kF32, {num_heads, width}},
          std::as_bytes(std::span<const float>(*values)),
          values};
}

// The setup of a trunk with `flags.heads` heads: those of --model if it is a reward model.
//   INVALID_ARGUMENT  it has another number of heads
absl::StatusOr<trainer::SupervisedModelSetup> SetupOf(const RewardFlags& flags,
                                                      const SupervisedSession& session,
                                                      int64_t num_examples) {
  trainer::SupervisedModelSetup setup = session.ModelSetup(num_examples);
  const int64_t width = session.config().hidden_size;
  // lm_head.weight is the last of ModelTensors.
  if (!setup.config.tie_word_embeddings) setup.weights.pop_back();
  setup.config.tie_word_embeddings = true;
  setup.num_heads = flags.heads;
  const std::vector<int64_t> want = {flags.heads, width};
  if (session.head().has_value() && session.head()->spec.shape != want) {
    return InvalidArgument(flags.common.model, ": ", session.head()->spec.ToString(),
                           " should be [", flags.heads, ", ", width,
                           "]: set --heads to what the model has");
  }
  setup.head = session.head().value_or(FreshHead(flags.heads, width, flags.common.run.seed));
  return setup;
}

absl::Status NoHeldOut(const RewardFlags& flags) {
  return AsUsageError(InvalidArgument(
      "--held-out ", flags.common.rows.held_out, " leaves no row of ", flags.common.data,
      " to measure accuracy and calibration on: set it over 0, and give at least two prompts"));
}

// Trains on an objective and writes the model; returns the scores of the held-out examples.
absl::StatusOr<std::vector<float>> TrainHeads(const RewardFlags& flags, SupervisedSession& session,
                                              trainer::SupervisedObjective& objective,
                                              trainer::SupervisedObjective& held_out,
                                              RewardReport& report) {
  const std::string digest = trainer::SequencesDigest(
      objective.num_examples(), [&](int64_t i) { return objective.Example(i); });
  TANDEM_RETURN_IF_ERROR(session.Join(/*takes_heads=*/true));
  TANDEM_ASSIGN_OR_RETURN(const trainer::SupervisedModelSetup setup,
                          SetupOf(flags, session, objective.num_examples()));
  TANDEM_ASSIGN_OR_RETURN(const auto model, SupervisedModel::Create(setup));
  TANDEM_ASSIGN_OR_RETURN(const trainer::SupervisedOutcome outcome,
                          session.Train(*model, objective, &held_out, digest));
  TANDEM_ASSIGN_OR_RETURN(std::vector<float> scores, model->HeadScores(held_out));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, session.Gather(*model));
  report.num_trained = objective.num_examples();
  report.num_updates = outcome.num_updates;
  if (outcome.held_out.has_value()) report.held_out_loss = outcome.held_out->loss;
  if (!session.leads()) return scores;
  TANDEM_RETURN_IF_ERROR(WriteRewardModel(
      flags.process ? trainer::RewardModelKind::kProcess : trainer::RewardModelKind::kOutcome,
      session.config(), std::move(tensors), flags.common.model, flags.common.out,
      flags.common.save_dtype == "bf16" ? DType::kBF16 : DType::kF32));
  absl::PrintF("%s: %d updates on %d examples\n", flags.common.out, outcome.num_updates,
               report.num_trained);
  return scores;
}

void SayNotes(const SupervisedSession& session, const trainer::PreferenceRowCounts& counts) {
  const std::string notes = RowNotes(counts);
  if (!notes.empty() && session.leads()) absl::FPrintF(stderr, "%s\n", notes);
}

absl::StatusOr<trainer::PreferenceData> ReadPairs(const RewardFlags& flags,
                                                  const SupervisedSession& session,
                                                  const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(
      trainer::PreferenceData data,
      trainer::ReadPreferenceData(path, flags.common.rows, session.tokenizer(), session.end_token(),
                                  session.config().max_position_embeddings));
  if (data.pairs.empty()) {
    return InvalidArgument(path,
                           ": completions with a label, but a reward model is trained on pairs of "
                           "\"chosen\" and \"rejected\"; --process reads labelled steps");
  }
  SayNotes(session, data.counts);
  return data;
}

absl::Status TrainOnPairs(RewardFlags& flags, SupervisedSession& session, RewardReport report) {
  SupervisedFlags& common = flags.common;
  TANDEM_ASSIGN_OR_RETURN(trainer::PreferenceData data, ReadPairs(flags, session, common.data));
  const auto seed = static_cast<uint64_t>(common.run.seed);
  trainer::PreferenceData unseen;
  if (common.held_out_data.empty()) {
    unseen = TakeHeldOut(data, common.rows.held_out, seed);
  } else {
    TANDEM_ASSIGN_OR_RETURN(unseen, ReadPairs(flags, session, common.held_out_data));
  }
  if (unseen.pairs.empty()) return NoHeldOut(flags);
  const auto count = static_cast<int64_t>(data.pairs.size());
  trainer::RewardObjective objective(
      std::move(data.pairs), flags.heads,
      flags.heads > 1 ? trainer::BootstrapCounts(flags.heads, count, seed) : std::vector<double>(),
      flags.loss);
  trainer::RewardObjective held_out(unseen.pairs, flags.heads, {}, flags.loss);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> scores,
                          TrainHeads(flags, session, objective, held_out, report));
  if (!session.leads()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::string text,
                          WriteRewardReport(common.out, report, unseen.pairs, scores));
  absl::PrintF("%s%s/reward_model.html\n", text, common.out);
  return absl::OkStatus();
}

absl::Status TrainOnSteps(RewardFlags& flags, SupervisedSession& session, RewardReport report) {
  SupervisedFlags& common = flags.common;
  const auto read = [&](const std::string& path) {
    return trainer::ReadStepData(path, common.rows, session.tokenizer(),
                                 session.config().max_position_embeddings);
  };
  TANDEM_ASSIGN_OR_RETURN(trainer::StepData data, read(common.data));
  SayNotes(session, data.counts);
  std::vector<trainer::LabelledSteps> unseen;
  if (common.held_out_data.empty()) {
    unseen = TakeHeldOut(data.rows, common.rows.held_out, static_cast<uint64_t>(common.run.seed));
  } else {
    TANDEM_ASSIGN_OR_RETURN(trainer::StepData other, read(common.held_out_data));
    unseen = std::move(other.rows);
  }
  if (unseen.empty()) return NoHeldOut(flags);
  trainer::StepObjective objective(std::move(data.rows));
  trainer::StepObjective held_out(unseen);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> scores,
                          TrainHeads(flags, session, objective, held_out, report));
  if (!session.leads()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::string text,
                          WriteStepReport(common.out, report, unseen, scores));
  absl::PrintF("%s%s/reward_model.html\n", text, common.out);
  return absl::OkStatus();
}

absl::Status TrainRewardModel(RewardFlags& flags) {
  if (flags.process && flags.heads > 1) {
    return AsUsageError(
        InvalidArgument("--process has one head, and --heads is ", flags.heads,
                        ": for an ensemble of process reward models run it with several seeds"));
  }
  const trainer::RewardModelLossOptions& loss = flags.loss;
  if (flags.process && (loss.label_smoothing > 0 || loss.center_rewards_coefficient > 0)) {
    return AsUsageError(absl::InvalidArgumentError(
        "--label-smoothing and --center-rewards-coefficient belong to pairs: leave them out with "
        "--process"));
  }
  TANDEM_ASSIGN_OR_RETURN(const auto session, SupervisedSession::Open(flags.common));
  RewardReport report = {
      .name = std::filesystem::path(flags.common.out + "/.").parent_path().filename().string(),
      .kind = flags.process ? "process" : "outcome",
      .num_heads = flags.heads};
  return flags.process ? TrainOnSteps(flags, *session, std::move(report))
                       : TrainOnPairs(flags, *session, std::move(report));
}

}  // namespace

void AddTrainRewardModelCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<RewardFlags>();
  SupervisedFlags& common = flags->common;
  common.command = "train-reward-model";
  common.optimizer.learning_rate = 1e-5;
  common.optimizer.decay = trainer::LearningRateDecay::kLinear;
  common.rows.held_out = 0.05;
  CLI::App* sub =
      app.add_subcommand("train-reward-model", "A reward model from pairs, or from labelled steps");
  BindOptions(common.binder, flags->loss);
  common.binder.Integer("heads", &flags->heads, {.min = 1, .max = 64}, "",
                        "of an ensemble on one trunk, each with a bootstrap sample of the pairs");
  common.binder.Flag("process", &flags->process,
                     "a process reward model: a score at the last token of each step");
  AddSupervisedFlags(*sub, common,
                     "JSON lines or .parquet: prompt, chosen, rejected; with --process prompt, "
                     "steps, labels (docs/preferences.md)");
  EndHelp(*sub,
          "The score is read at the last token, which is the end token unless a row was truncated.",
          "tandem train-reward-model --model warm --data pairs.jsonl --out rm --heads 4");
  SetAction(*sub, chosen, [flags] {
    const std::optional<int> launched = StartRanks(flags->common);
    return launched.has_value() ? *launched : Finish(TrainRewardModel(*flags));
  });
}

}  // namespace tandem::cli
