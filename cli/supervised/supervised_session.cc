#include "cli/supervised/supervised_session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/io/live_line.h"
#include "cli/io/option_flags.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_directory.h"
#include "cli/model/model_input.h"
#include "cli/run/rank_processes.h"
#include "cli/run_file/launch_options.h"
#include "cli/supervised/reward_model_directory.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/lora/adapted_model.h"
#include "common/process/memory.h"
#include "common/weights/digest.h"
#include "trainer/critic/critic_options.h"
#include "trainer/critic/scored_model.h"
#include "trainer/ranks/device_choice.h"

namespace tandem::cli {
namespace {

constexpr double kLockPatienceSeconds = 5;

// The arguments with which this process was started, without its own name.
absl::StatusOr<std::vector<std::string>> OwnArguments() {
  TANDEM_ASSIGN_OR_RETURN(const std::string raw, ReadFile("/proc/self/cmdline"));
  std::vector<std::string> arguments;
  std::string argument;
  for (const char c : raw) {
    if (c != '\0') {
      argument += c;
      continue;
    }
    arguments.push_back(std::exchange(argument, ""));
  }
  if (!arguments.empty()) arguments.erase(arguments.begin());
  return arguments;
}

std::string Describe(const std::string& command, const trainer::SupervisedProgress& progress) {
  const auto done = static_cast<double>(progress.done_here);
  return absl::StrFormat(
      "%s %s  loss %.4f  lr %.1e  %.0f tok/s  ETA %s", command,
      ProgressBar(progress.done, progress.total, 20), progress.report.loss,
      progress.report.learning_rate,
      static_cast<double>(progress.num_tokens) / std::max(progress.seconds, 1e-9),
      ShortDuration(progress.seconds / done * static_cast<double>(progress.total - progress.done)));
}

}  // namespace

void AddSupervisedFlags(CLI::App& sub, SupervisedFlags& flags, const std::string& data_help,
                        std::map<std::string, std::string> renamed) {
  sub.add_option("--model", flags.model,
                 "model to start from: a Hugging Face directory, or a name on the Hub")
      ->required();
  sub.add_option("--data", flags.data, data_help)->required();
  sub.add_option("--held-out-data", flags.held_out_data,
                 "held-out rows in the form of --data, in place of --held-out");
  sub.add_option("--out", flags.out, "directory to make")->required();
  renamed.insert({{"learning_rate", "lr"}, {"warmup_updates", "warmup"}, {"decay_updates", ""}});
  BindOptions(flags.binder, flags.run);
  BindOptions(flags.binder, flags.optimizer);
  BindOptions(flags.binder, flags.rows);
  AddOptionFlags(sub, flags.binder, renamed);
  AddChoice(&sub, "--save-dtype", flags.save_dtype, {"fp32", "bf16"},
            "dtype of the weights written; bf16 is rounded as in a weight push (dither)");
  AddRange(&sub, "--ranks", flags.ranks, 1, 1024,
           "processes that train together on this machine, which this one starts; a launcher "
           "(torchrun, tandem ranks, Slurm) may start them instead");
  AddThreadsFlag(&sub, flags.threads);
  sub.add_flag("--resume", flags.resume,
               "go on from the last checkpoint in --out, with the same flags");
}

std::optional<int> StartRanks(const SupervisedFlags& flags) {
  if (flags.ranks == 1 || std::getenv("RANK") != nullptr) return std::nullopt;
  const auto arguments = OwnArguments();
  if (!arguments.ok()) return FailUsage(arguments.status());
  RanksPlan plan = {.node = {.per_node = flags.ranks, .master_port = FreePort()},
                    .argv = {ProgramDirectory() + "/tandem"},
                    .colour_output = ColourWantedOn(STDOUT_FILENO),
                    .colour_errors = ColourWantedOn(STDERR_FILENO)};
  plan.argv.insert(plan.argv.end(), arguments->begin(), arguments->end());
  const StopSignal stop;
  RankProcesses ranks(std::move(plan), &stop);
  if (const absl::Status started = ranks.Start(); !started.ok()) {
    return FailUsage(trainer::WithExitCode(started, ExitCode::kChildDied));
  }
  return ranks.Wait();
}

absl::StatusOr<std::unique_ptr<SupervisedSession>> SupervisedSession::Open(SupervisedFlags& flags) {
  std::unique_ptr<SupervisedSession> session(new SupervisedSession(flags));
  auto self = comm::ReadRankEnvironment(comm::ProcessEnvironment());
  if (!self.ok()) return AsUsageError(self.status());
  session->self_ = *std::move(self);
  if (flags.ranks > 1 && session->self_.world_size != flags.ranks) {
    return AsUsageError(InvalidArgument("--ranks is ", flags.ranks, ", but the launcher (",
                                        session->self_.source, ") started ",
                                        session->self_.world_size, ": leave --ranks out"));
  }
  TANDEM_RETURN_IF_ERROR(FindModel(&flags.model));
  TANDEM_RETURN_IF_ERROR(CheckNoModelAt(flags.out));
  const absl::Status directory = trainer::CheckRunDirectory(flags.out, flags.resume);
  if (!directory.ok()) return AsUsageError(directory);
  TANDEM_ASSIGN_OR_RETURN(session->tokenizer_, Tokenizer::Load(flags.model));
  TANDEM_ASSIGN_OR_RETURN(session->config_, trainer::ReadTrunkConfig(flags.model));
  const std::vector<int32_t>& ends = session->config_.eos_token_ids;
  session->end_token_ = !ends.empty() ? ends[0] : session->tokenizer_->eos_token_id();
  if (session->end_token_ < 0) return InvalidArgument(flags.model, ": names no end token");
  return session;
}

// The settings that a resumed run must have, and that all ranks must agree on.
std::string SupervisedSession::Settings() const {
  return absl::StrCat("command: ", flags_.command, "\nmodel: ", flags_.model,
                      "\ndata: ", flags_.data, "\nheld_out_data: ", flags_.held_out_data, "\n",
                      flags_.binder.ToYaml(), flags_.more_settings);
}

absl::Status SupervisedSession::Join(bool takes_heads) {
  if (leads()) {  // a run that was told to stop may still save there
    TANDEM_RETURN_IF_ERROR(trainer::WithExitCode(MakeDirectories(flags_.out), ExitCode::kStorage));
    auto lock = DirectoryLock::Take(flags_.out, kLockPatienceSeconds);
    if (!lock.ok()) return AsUsageError(lock.status());
    lock_ = *std::move(lock);
  }
  const Device device = flags_.run.device;
  const absl::Status chosen = trainer::ChooseDevice(device, self_.local_rank);
  if (!chosen.ok()) return trainer::WithExitCode(chosen, ExitCode::kBadModelOrData);
  KeepFreedMemory();
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const bool shares_cores = flags_.threads == 0 && self_.local_world_size > 1;
  trainer::SupervisedModel::UseThreads(
      shares_cores ? std::max<int64_t>(1, cores / self_.local_world_size) : flags_.threads);
  const std::optional<EndWhileLoading> loading(std::in_place, stop_);
  TANDEM_ASSIGN_OR_RETURN(
      ranks_, trainer::ProcessGroup::Join(self_, {.shard_parameters = flags_.run.shard_parameters},
                                          device, flags_.command, Settings()));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadAdaptedTensors(flags_.model));
  TANDEM_RETURN_IF_ERROR(trainer::WithExitCode(trainer::TakeHead(flags_.model, tensors, head_),
                                               ExitCode::kBadModelOrData));
  if (head_.has_value() && !takes_heads) {
    return InvalidArgument(flags_.model, " is a reward model (it has ", trainer::kScoreWeight,
                           "), without a head over the vocabulary: name a language model");
  }
  if (head_.has_value()) config_.tie_word_embeddings = true;  // it has no head over the vocabulary
  TANDEM_ASSIGN_OR_RETURN(weights_, MatchModelTensors(config_, std::move(tensors)));
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadFile(flags_.model + "/config.json"));
  config_digest_ = DigestOf(config);
  return absl::OkStatus();
}

absl::StatusOr<bool> SupervisedSession::AllRanks(bool own) const {
  TANDEM_ASSIGN_OR_RETURN(const double any_not,
                          trainer::MaxOverRanks(ranks_->collectives(), own ? 0 : 1));
  return any_not == 0;
}

trainer::SupervisedModelSetup SupervisedSession::ModelSetup(int64_t num_examples) const {
  trainer::SupervisedModelSetup setup = FrozenSetup(config_, weights_);
  setup.trainable = true;
  setup.optimizer = flags_.optimizer;
  const int64_t total = trainer::NumUpdates(flags_.run, num_examples);
  setup.optimizer.decay_updates = std::max<int64_t>(1, total - flags_.optimizer.warmup_updates);
  setup.checkpoint_activations = flags_.run.checkpoint_activations;
  return setup;
}

trainer::SupervisedModelSetup SupervisedSession::FrozenSetup(
    const ModelConfig& config, std::vector<HostTensor> weights) const {
  return {.config = config,
          .weights = std::move(weights),
          .trainable = false,
          .microbatch_tokens = flags_.run.microbatch_tokens,
          .dtype = flags_.run.dtype,
          .device = flags_.run.device,
          .collectives = ranks_->collectives(),
          .shard_parameters = flags_.run.shard_parameters};
}

absl::StatusOr<trainer::SupervisedOutcome> SupervisedSession::Train(
    trainer::SupervisedModel& model, trainer::SupervisedObjective& objective,
    trainer::SupervisedObjective* held_out, const std::string& data_digest) {
  LiveLine live;
  const auto show = [&](const trainer::SupervisedProgress& progress) {
    const std::string text = Describe(flags_.command, progress);
    const int64_t plain_every = std::max<int64_t>(1, progress.total / 20);
    if (progress.done == progress.total ||
        (!live.is_terminal() && progress.done % plain_every == 0)) {
      live.Print(text);
    } else {
      live.Update(text);
    }
  };
  TANDEM_ASSIGN_OR_RETURN(
      trainer::SupervisedOutcome outcome,
      trainer::TrainSupervised(
          flags_.run, {.out = flags_.out,
                       .model_directory = flags_.model,
                       .settings = Settings(),
                       .data_digest = data_digest,
                       .identity = {.model_config_digest = config_digest_,
                                    .tokenizer_hash = tokenizer_->hash(),
                                    .start_digest = CombinedDigest(DigestTensors(weights_))},
                       .resume = flags_.resume,
                       .model = &model,
                       .objective = &objective,
                       .held_out = held_out,
                       .stop_requested = [this] { return stop_.Requested(); },
                       .on_progress = show}));
  if (!outcome.stopped) return outcome;
  return trainer::WithExitCode(
      Cancelled("stopped after update ", outcome.num_updates, " of ", outcome.total,
                ", which is saved in ", flags_.out, ": go on with --resume"),
      ExitCodeOfSignal(stop_.signal()));
}

absl::StatusOr<std::vector<HostTensor>> SupervisedSession::Gather(
    const trainer::SupervisedModel& model) const {
  std::vector<HostTensor> tensors;
  for (const TensorSource& source : model.Weights()) {
    TANDEM_ASSIGN_OR_RETURN(HostTensor tensor, source.read());
    if (leads()) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::Status SupervisedSession::Write(std::vector<HostTensor> tensors) const {
  if (!leads()) return absl::OkStatus();
  return WriteModelDirectory(config_, std::move(tensors), flags_.model, flags_.out,
                             flags_.save_dtype == "bf16" ? DType::kBF16 : DType::kF32);
}

std::string DigestOf(const std::string& text) {
  return Digest128(std::as_bytes(std::span(text.data(), text.size())));
}

std::string RowNotes(const trainer::PreferenceRowCounts& counts) {
  std::vector<std::string> notes;
  const auto note = [&](int64_t count, const char* what) {
    if (count > 0) notes.push_back(absl::StrCat(count, " ", what));
  };
  note(counts.truncated, "truncated");
  note(counts.dropped_long, "dropped, too long");
  note(counts.dropped_unusable, "dropped, nothing to learn");
  note(counts.scored_against, "whose score_chosen is not over score_rejected");
  if (notes.empty()) return "";
  return absl::StrCat("of ", counts.rows, " rows: ", absl::StrJoin(notes, ", "));
}

}  // namespace tandem::cli
