// tandem train-preferences: DPO and its relatives, and KTO, on judgements of completions.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/io/live_line.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/supervised/supervised_session.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/lora/adapted_model.h"
#include "common/options/command_line.h"
#include "common/weights/digest.h"
#include "trainer/preferences/preference_loss_options.h"
#include "trainer/supervised/objectives/kto_objective.h"
#include "trainer/supervised/objectives/preference_objective.h"
#include "trainer/supervised/reference_logprobs.h"

namespace tandem::cli {
namespace {

using trainer::GroupTokens;
using trainer::PreferenceData;
using trainer::SupervisedModel;
using trainer::SupervisedObjective;

struct PreferenceFlags {
  SupervisedFlags common;
  trainer::PreferenceLossOptions loss;
  std::string reference;        // empty: the starting model
  std::string reference_cache;  // empty: in --out
};

// The sequences whose reference log-probs a loss reads: those of the data, then the held-out ones.
class ReferenceSequences {
 public:
  // `run_length` is that of KtoObjective. The data must outlive this object.
  ReferenceSequences(const PreferenceData& data, const PreferenceData& held_out, int64_t run_length)
      : data_(data), held_out_(held_out) {
    mismatched_ = trainer::MismatchedRows(Count(data.labelled), run_length);
    unseen_mismatched_ = trainer::MismatchedRows(Count(held_out.labelled), run_length);
  }

  int64_t count() const {
    return num_trained() + Count(held_out_.pairs) + Count(held_out_.labelled);
  }
  int64_t num_trained() const { return Count(data_.pairs) + Count(data_.labelled); }
  GroupTokens At(int64_t i) const {
    const bool is_held_out = i >= num_trained();
    const PreferenceData& part = is_held_out ? held_out_ : data_;
    const int64_t own = is_held_out ? i - num_trained() : i;
    if (!part.pairs.empty()) return trainer::TokensOf(part.pairs[static_cast<size_t>(own)]);
    return trainer::WithMismatched(part.labelled, is_held_out ? unseen_mismatched_ : mismatched_,
                                   own);
  }
  // How many log-probs belong to the data that is trained on.
  int64_t num_trained_tokens() const {
    return trainer::NumCompletionTokens(num_trained(), [this](int64_t i) { return At(i); });
  }

 private:
  template <typename Row>
  static int64_t Count(const std::vector<Row>& rows) {
    return static_cast<int64_t>(rows.size());
  }

  const PreferenceData& data_;
  const PreferenceData& held_out_;
  std::vector<int64_t> mismatched_, unseen_mismatched_;
};

// Loads the reference policy and scores the sequences; on every rank.
absl::StatusOr<std::vector<float>> ScoreReference(const SupervisedSession& session,
                                                  const ModelConfig& config,
                                                  std::vector<HostTensor> weights,
                                                  const ReferenceSequences& sequences) {
  TANDEM_ASSIGN_OR_RETURN(const auto model,
                          SupervisedModel::Create(session.FrozenSetup(config, std::move(weights))));
  LiveLine live;
  const auto show = [&](int64_t done) {
    if (!session.leads()) return;
    live.Update(absl::StrCat("reference log-probs ", ProgressBar(done, sequences.count(), 20)));
  };
  return model->Logprobs(
      sequences.count(), [&](int64_t i) { return sequences.At(i); }, show);
}

// The reference policy: that of --reference, or the starting model.
absl::Status ReadReference(const PreferenceFlags& flags, const SupervisedSession& session,
                           ModelConfig& config, std::vector<HostTensor>& weights) {
  if (flags.reference.empty()) return absl::OkStatus();
  std::string directory = flags.reference;
  TANDEM_RETURN_IF_ERROR(FindModel(&directory));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(directory));
  if (tokenizer->hash() != session.tokenizer().hash()) {
    return InvalidArgument("--reference ", flags.reference,
                           " has another tokenizer than the model: its log-probs would be of "
                           "other tokens");
  }
  TANDEM_ASSIGN_OR_RETURN(config, ReadModelConfig(directory));
  TANDEM_ASSIGN_OR_RETURN(weights, ReadAdaptedTensors(directory));
  TANDEM_ASSIGN_OR_RETURN(weights, MatchModelTensors(config, std::move(weights)));
  return absl::OkStatus();
}

// The reference log-probs from the cache where it fits, else computed and cached. All ranks decide
// alike, because they read the same file.
//   FAILED_PRECONDITION  a file that --reference-cache names, or that of a resumed run, was made
//                        from something else
absl::StatusOr<std::vector<float>> ReferenceLogprobs(const PreferenceFlags& flags,
                                                     const SupervisedSession& session,
                                                     const ReferenceSequences& sequences) {
  ModelConfig config = session.config();
  std::vector<HostTensor> weights = session.weights();
  TANDEM_RETURN_IF_ERROR(ReadReference(flags, session, config, weights));
  const auto at = [&](int64_t i) { return sequences.At(i); };
  const bool bf16 = flags.common.run.dtype == ComputeDType::kBf16;
  const trainer::ReferenceIdentity identity = {
      .weights_digest = CombinedDigest(DigestTensors(weights)),
      .tokenizer_hash = session.tokenizer().hash(),
      .sequences_digest = trainer::SequencesDigest(sequences.count(), at),
      .dtype = bf16 ? "bf16" : "fp32",
      .numerics = std::string(NumericsName(Numerics::kFast))};
  const bool is_named = !flags.reference_cache.empty();
  const std::string path =
      is_named ? flags.reference_cache : flags.common.out + "/reference_logprobs.safetensors";
  auto cached = trainer::ReadReferenceCache(path, identity,
                                            trainer::NumCompletionTokens(sequences.count(), at));
  TANDEM_ASSIGN_OR_RETURN(const bool all_have_it, session.AllRanks(cached.ok()));
  if (all_have_it) {
    if (session.leads()) absl::FPrintF(stderr, "reference log-probs of %s\n", path);
    return cached;
  }
  if ((is_named || flags.common.resume) && !cached.ok() && !absl::IsNotFound(cached.status())) {
    const char* const what_to_do =
        is_named ? ": name another --reference-cache, or remove the file"
                 : ": resume with the --reference that the run had, or remove the file if that "
                   "policy is the same";
    return trainer::WithExitCode(
        absl::Status(cached.status().code(), absl::StrCat(cached.status().message(), what_to_do)),
        ExitCode::kBadModelOrData);
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<float> logprobs,
                          ScoreReference(session, config, std::move(weights), sequences));
  if (session.leads()) {
    TANDEM_RETURN_IF_ERROR(MakeDirectories(flags.common.out));
    TANDEM_RETURN_IF_ERROR(trainer::WriteReferenceCache(path, identity, logprobs));
  }
  return logprobs;
}

std::unique_ptr<SupervisedObjective> MakeObjective(PreferenceData data, int64_t run_length,
                                                   std::span<const float> reference,
                                                   const trainer::PreferenceLossOptions& options) {
  if (NeedsLabels(options.kind)) {
    return std::make_unique<trainer::KtoObjective>(std::move(data.labelled), run_length, reference,
                                                   options);
  }
  return std::make_unique<trainer::PreferenceObjective>(std::move(data.pairs), reference, options);
}

// Pairs are two labelled completions for kto; single completions are no pairs for the others.
absl::Status ShapeData(const PreferenceFlags& flags, const std::string& path,
                       PreferenceData& data) {
  if (!NeedsLabels(flags.loss.kind)) {
    if (!data.pairs.empty()) return absl::OkStatus();
    return InvalidArgument(path,
                           ": completions with a label, but this loss reads pairs of \"chosen\" "
                           "and \"rejected\"; --loss kto reads labels");
  }
  if (data.labelled.empty()) {
    data.labelled = trainer::Unpair(data.pairs);
    data.pairs.clear();
  }
  const auto is_good = [](const trainer::LabelledCompletion& row) { return row.desirable; };
  const int64_t good = std::ranges::count_if(data.labelled, is_good);
  if (good > 0 && good < static_cast<int64_t>(data.labelled.size())) return absl::OkStatus();
  return InvalidArgument(path, ": all ", data.labelled.size(),
                         " completions have the same label; kto needs desirable and undesirable "
                         "ones");
}

void Summarise(const PreferenceFlags& flags, const trainer::SupervisedOutcome& outcome,
               const std::vector<std::string>& names, int64_t count, int64_t num_held_out) {
  const auto print = [&](const char* what, const trainer::SupervisedReport& report) {
    absl::PrintF("%s: loss %.4f", what, report.loss);
    for (size_t m = 0; m < names.size(); ++m) {
      if (std::isnan(report.metrics[m])) continue;  // no example has it
      absl::PrintF("  %s %.4f", names[m], report.metrics[m]);
    }
    absl::PrintF("\n");
  };
  absl::PrintF("%s: %d updates on %d examples\n", flags.common.out, outcome.num_updates, count);
  print("last update", outcome.last);
  if (!outcome.held_out.has_value()) return;
  print(absl::StrFormat("held out (%d)", num_held_out).c_str(), *outcome.held_out);
}

// Reads a file of the kind that the loss needs.
absl::StatusOr<PreferenceData> ReadData(const PreferenceFlags& flags,
                                        const SupervisedSession& session, const std::string& path) {
  const SupervisedFlags& common = flags.common;
  TANDEM_ASSIGN_OR_RETURN(
      PreferenceData data,
      trainer::ReadPreferenceData(path, common.rows, session.tokenizer(), session.end_token(),
                                  session.config().max_position_embeddings));
  const absl::Status fits = trainer::CheckOptions(flags.loss, data.has_margins());
  if (!fits.ok()) return AsUsageError(fits);
  const std::string notes = RowNotes(data.counts);
  if (!notes.empty() && session.leads()) absl::FPrintF(stderr, "%s: %s\n", path, notes);
  TANDEM_RETURN_IF_ERROR(ShapeData(flags, path, data));
  return data;
}

// A flag of the reference policy for a loss that has none.
absl::Status CheckReferenceFlags(const PreferenceFlags& flags) {
  if (NeedsReference(flags.loss.kind)) return absl::OkStatus();
  if (flags.reference.empty() && flags.reference_cache.empty()) return absl::OkStatus();
  return AsUsageError(InvalidArgument(flags.reference.empty() ? "--reference-cache" : "--reference",
                                      ": this loss has no reference policy; leave it out"));
}

absl::Status TrainPreferences(PreferenceFlags& flags) {
  SupervisedFlags& common = flags.common;
  TANDEM_RETURN_IF_ERROR(CheckReferenceFlags(flags));
  common.more_settings = absl::StrCat("reference: ", flags.reference, "\n");
  TANDEM_ASSIGN_OR_RETURN(const auto session, SupervisedSession::Open(common));
  TANDEM_ASSIGN_OR_RETURN(PreferenceData data, ReadData(flags, *session, common.data));
  PreferenceData held_out;
  if (common.held_out_data.empty()) {
    held_out = TakeHeldOut(data, common.rows.held_out, static_cast<uint64_t>(common.run.seed));
  } else {
    TANDEM_ASSIGN_OR_RETURN(held_out, ReadData(flags, *session, common.held_out_data));
  }
  const int64_t run_length = std::max<int64_t>(2, common.run.batch);
  TANDEM_RETURN_IF_ERROR(session->Join());
  std::vector<float> reference;
  const ReferenceSequences sequences(data, held_out, run_length);
  const std::string digest =
      trainer::SequencesDigest(sequences.count(), [&](int64_t i) { return sequences.At(i); });
  if (NeedsReference(flags.loss.kind)) {
    TANDEM_ASSIGN_OR_RETURN(reference, ReferenceLogprobs(flags, *session, sequences));
  }
  const std::span<const float> all(reference);
  const auto border =
      reference.empty() ? size_t{0} : static_cast<size_t>(sequences.num_trained_tokens());
  const auto unseen =
      MakeObjective(std::move(held_out), run_length, all.subspan(border), flags.loss);
  const auto objective = MakeObjective(std::move(data), run_length, all.first(border), flags.loss);
  const int64_t count = objective->num_examples();
  TANDEM_ASSIGN_OR_RETURN(const auto model, SupervisedModel::Create(session->ModelSetup(count)));
  SupervisedObjective* const measured = unseen->num_examples() > 0 ? unseen.get() : nullptr;
  TANDEM_ASSIGN_OR_RETURN(const trainer::SupervisedOutcome outcome,
                          session->Train(*model, *objective, measured, digest));
  TANDEM_ASSIGN_OR_RETURN(auto tensors, session->Gather(*model));
  TANDEM_RETURN_IF_ERROR(session->Write(std::move(tensors)));
  if (session->leads()) {
    Summarise(flags, outcome, objective->MetricNames(), count, unseen->num_examples());
  }
  return absl::OkStatus();
}

}  // namespace

void AddTrainPreferencesCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<PreferenceFlags>();
  SupervisedFlags& common = flags->common;
  common.command = "train-preferences";
  common.optimizer.learning_rate = 1e-6;
  common.optimizer.decay = trainer::LearningRateDecay::kLinear;
  CLI::App* sub = app.add_subcommand("train-preferences",
                                     "Preference learning: DPO, IPO, SimPO, ORPO, KTO and others");
  BindOptions(common.binder, flags->loss);
  AddSupervisedFlags(*sub, common,
                     "JSON lines or .parquet: prompt, chosen, rejected; for kto prompt, "
                     "completion, label (docs/preferences.md)",
                     {{"kind", "loss"}});
  sub->add_option("--reference", flags->reference,
                  "directory of the frozen reference policy; default: the starting model");
  sub->add_option("--reference-cache", flags->reference_cache,
                  "file of its log-probs, read if it fits, else refused, and written if it is not "
                  "there; default: reference_logprobs.safetensors in --out, made anew if it does "
                  "not fit");
  EndHelp(*sub, "",
          "tandem train-preferences --loss dpo --model MODEL --data pairs.jsonl --out aligned "
          "--held-out 0.05");
  SetAction(*sub, chosen, [flags] {
    const std::optional<int> launched = StartRanks(flags->common);
    return launched.has_value() ? *launched : Finish(TrainPreferences(*flags));
  });
}

}  // namespace tandem::cli
