// SupervisedSession: what `tandem sft`, `train-preferences` and `train-reward-model` share: their
// flags, the ranks, the model they start from, the loop with its progress line, and the directory
// they leave.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_system.h"
#include "common/model/model_config.h"
#include "common/options/options.h"
#include "common/process/stop_signal.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/host_tensor.h"
#include "trainer/optimizer/optimizer_options.h"
#include "trainer/preferences/preference_data.h"
#include "trainer/ranks/process_group.h"
#include "trainer/supervised/supervised_model.h"
#include "trainer/supervised/supervised_options.h"
#include "trainer/supervised/supervised_run.h"

namespace tandem::cli {

struct SupervisedFlags {
  std::string command;  // "sft"
  std::string model, data, out;
  std::string held_out_data;  // empty: a share of the data
  std::string save_dtype = "fp32";
  int ranks = 1;  // that this process starts; 1: it is the rank
  int64_t threads = 0;
  bool resume = false;
  trainer::SupervisedOptions run;
  trainer::OptimizerOptions optimizer{
      .learning_rate = 2e-5, .warmup_updates = 10, .decay = trainer::LearningRateDecay::kCosine};
  trainer::PreferenceDataOptions rows;
  OptionBinder binder;        // of the options above, and of those that a command adds
  std::string more_settings;  // "name: value\n" of its flags that are no options
};

// Declares the flags that the three commands share. Options that `flags.binder` has when this is
// called get flags too; `renamed` is that of AddOptionFlags.
void AddSupervisedFlags(CLI::App& sub, SupervisedFlags& flags, const std::string& data_help,
                        std::map<std::string, std::string> renamed = {});

// Starts the ranks where --ranks asks for several and no launcher has started this process; then
// returns their exit code.
std::optional<int> StartRanks(const SupervisedFlags& flags);

class SupervisedSession {
 public:
  // Checks the directories and reads config and tokenizer; loads no weights.
  //   NOT_FOUND       no model directory; nothing to resume
  //   ALREADY_EXISTS  --out holds a model, or a run and --resume is not given
  //   INVALID_ARGUMENT  the model names no end token; variables of a launcher do not fit together
  static absl::StatusOr<std::unique_ptr<SupervisedSession>> Open(SupervisedFlags& flags);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return config_; }
  int32_t end_token() const { return end_token_; }
  bool leads() const { return self_.rank == 0; }

  // Meets the other ranks and reads the weights. To be called once the data is known to be right.
  //   INVALID_ARGUMENT  a reward model, unless `takes_heads`;  others of ProcessGroup::Join
  //   ALREADY_EXISTS    another process writes to --out
  absl::Status Join(bool takes_heads = false);
  // Tensors of the model directory, in ModelTensors order, and score.weight if it has one.
  const std::vector<HostTensor>& weights() const { return weights_; }
  const std::optional<HostTensor>& head() const { return head_; }

  // Whether `own` is true on every rank. UNAVAILABLE: a rank is lost.
  absl::StatusOr<bool> AllRanks(bool own) const;

  // The setup of the model that is trained on `num_examples`, without heads.
  trainer::SupervisedModelSetup ModelSetup(int64_t num_examples) const;
  // That of a model of other weights that scores only.
  trainer::SupervisedModelSetup FrozenSetup(const ModelConfig& config,
                                            std::vector<HostTensor> weights) const;

  // Runs the loop with a progress line.
  //   CANCELLED  a signal stopped it after a checkpoint
  //   others of TrainSupervised
  absl::StatusOr<trainer::SupervisedOutcome> Train(trainer::SupervisedModel& model,
                                                   trainer::SupervisedObjective& objective,
                                                   trainer::SupervisedObjective* held_out,
                                                   const std::string& data_digest);

  // The trained tensors on rank 0, which every rank helps to gather; empty elsewhere.
  absl::StatusOr<std::vector<HostTensor>> Gather(const trainer::SupervisedModel& model) const;
  // The model directory of `tensors`, on rank 0.
  absl::Status Write(std::vector<HostTensor> tensors) const;

 private:
  explicit SupervisedSession(SupervisedFlags& flags) : flags_(flags) {}
  std::string Settings() const;

  SupervisedFlags& flags_;
  std::unique_ptr<DirectoryLock> lock_;  // of --out, on rank 0
  StopSignal stop_;
  comm::RankEnvironment self_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelConfig config_;
  int32_t end_token_ = -1;
  std::string config_digest_;
  std::unique_ptr<trainer::ProcessGroup> ranks_;
  std::vector<HostTensor> weights_;
  std::optional<HostTensor> head_;
};

// A digest of the parts of an input, for SupervisedRunSetup::data_digest.
std::string DigestOf(const std::string& text);

// "12 of 2000 rows truncated, ...": what became of rows that were not kept as they are; empty if
// all were.
std::string RowNotes(const trainer::PreferenceRowCounts& counts);

}  // namespace tandem::cli
