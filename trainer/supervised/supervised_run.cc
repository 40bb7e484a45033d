#include "trainer/supervised/supervised_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/metrics_line.h"
#include "trainer/prompts/prompt_source.h"

namespace tandem::trainer {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kKeptCheckpoints = 2;
constexpr const char* kFreeSettings[] = {"evaluate_every", "checkpoint_every", "shard_parameters"};

std::string CheckpointsOf(const std::string& out) { return out + "/checkpoints"; }
std::string SettingsOf(const std::string& out) { return out + "/config.yaml"; }
std::string MetricsOf(const std::string& out) { return out + "/metrics.jsonl"; }

absl::Status OfStorage(absl::Status status) {
  return WithExitCode(std::move(status), ExitCode::kStorage);
}
absl::Status OfRanks(absl::Status status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)
             ? WithExitCode(std::move(status), ExitCode::kRankLost)
             : status;
}

bool IsFreeSetting(const std::string& line) {
  const auto names = [&](const char* name) { return line.find(name) != std::string::npos; };
  return std::any_of(std::begin(kFreeSettings), std::end(kFreeSettings), names);
}

std::vector<std::string> FixedLines(const std::string& settings) {
  std::vector<std::string> lines = absl::StrSplit(settings, '\n', absl::SkipWhitespace());
  std::erase_if(lines, [](const std::string& line) { return IsFreeSetting(line); });
  return lines;
}

// The examples of update `update`, from 0.
std::vector<int64_t> BatchOf(const SupervisedOptions& options, int64_t count, int64_t update) {
  const int64_t per_epoch = (count + options.batch - 1) / options.batch;
  std::vector<int64_t> order;
  if (options.shuffle) {
    order = EpochOrder(count, static_cast<uint64_t>(options.seed), update / per_epoch);
  } else {
    order.resize(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
  }
  const int64_t begin = update % per_epoch * options.batch;
  return {order.begin() + begin, order.begin() + std::min(count, begin + options.batch)};
}

// What was written about updates after `step` (a crash came after them) is dropped.
absl::Status CutMetrics(const std::string& path, int64_t step) {
  const absl::StatusOr<std::string> contents = ReadFile(path);
  if (absl::IsNotFound(contents.status())) return absl::OkStatus();
  if (!contents.ok()) return contents.status();
  std::istringstream lines(*contents);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object() || parsed.value("step", step + 1) > step) continue;
    absl::StrAppend(&kept, line, "\n");
  }
  return WriteFileAtomically(path, kept);
}

// One run of the loop.
class Loop {
 public:
  Loop(const SupervisedOptions& options, const SupervisedRunSetup& setup)
      : options_(options),
        setup_(setup),
        model_(*setup.model),
        total_(NumUpdates(options, setup.objective->num_examples())) {}

  absl::StatusOr<SupervisedOutcome> Run();

 private:
  bool leads() const { return model_.rank() == 0; }
  absl::Status Begin();
  absl::Status Resume();
  absl::Status Save();
  absl::StatusOr<std::optional<SupervisedReport>> Evaluate();
  absl::Status Record(const SupervisedReport& report,
                      const std::optional<SupervisedReport>& held_out);
  absl::StatusOr<bool> StopAsked();
  absl::Status NotFinite(const std::string& what) const;
  absl::Status CheckWeights();
  absl::StatusOr<SupervisedReport> Update();
  PromptOrder order() const {
    return {static_cast<uint64_t>(options_.seed), options_.batch, setup_.data_digest};
  }

  const SupervisedOptions& options_;
  const SupervisedRunSetup& setup_;
  SupervisedModel& model_;
  const int64_t total_;
  int64_t done_ = 0, saved_ = -1;
  SupervisedProgress progress_;
  double started_ = 0;
  std::unique_ptr<AppendFile> metrics_;  // of rank 0
};

absl::Status Loop::Begin() {
  if (!leads()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(OfStorage(MakeDirectories(CheckpointsOf(setup_.out))));
  TANDEM_RETURN_IF_ERROR(OfStorage(WriteFileAtomically(SettingsOf(setup_.out), setup_.settings)));
  return OfStorage(WriteFileAtomically(MetricsOf(setup_.out), ""));
}

// Rank 0 loads first, because it repairs what a crash left.
absl::Status Loop::Resume() {
  const std::string directory = CheckpointsOf(setup_.out);
  TANDEM_ASSIGN_OR_RETURN(const std::string was, ReadFile(SettingsOf(setup_.out)));
  TANDEM_RETURN_IF_ERROR(CheckSameSettings(was, setup_.settings));
  absl::StatusOr<LoadedCheckpoint> loaded = NotFound("no checkpoint in ", directory);
  for (const bool first : {true, false}) {
    if (first == leads()) loaded = LoadLatestCheckpoint(directory, setup_.identity);
    TANDEM_RETURN_IF_ERROR(OfRanks(model_.MaxOverRanks(0).status()));
  }
  if (!loaded.ok()) return WithExitCode(loaded.status(), ExitCode::kBadModelOrData);
  const Checkpoint& checkpoint = loaded->checkpoint;
  if (checkpoint.order.prompts_digest != setup_.data_digest) {
    return InvalidArgument(setup_.out, " was trained on other examples (digest ",
                           checkpoint.order.prompts_digest, ", now ", setup_.data_digest,
                           "): name the same --data, or begin anew with another --out");
  }
  TANDEM_RETURN_IF_ERROR(OfRanks(model_.Restore(
      checkpoint.learner.weights, checkpoint.learner.optimizer, checkpoint.learner.num_updates)));
  done_ = saved_ = checkpoint.step;
  return leads() ? OfStorage(CutMetrics(MetricsOf(setup_.out), done_)) : absl::OkStatus();
}

absl::Status Loop::Save() {
  const std::vector<TensorSource> weights = model_.Weights(), moments = model_.OptimizerState();
  saved_ = done_;
  if (leads()) {
    Checkpoint checkpoint = {.step = done_,
                             .frontier = {.step = done_, .group = done_},
                             .order = order(),
                             .identity = setup_.identity,
                             .learner = {weights, moments, model_.num_updates()}};
    return OfStorage(SaveCheckpoint(CheckpointsOf(setup_.out), checkpoint, setup_.model_directory,
                                    kKeptCheckpoints));
  }
  if (model_.num_ranks() == 1) return absl::OkStatus();
  // In the order in which SaveCheckpoint reads them.
  for (const auto* const sources : {&weights, &moments}) {
    for (const TensorSource& source : *sources) {
      TANDEM_RETURN_IF_ERROR(OfRanks(source.read().status()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SupervisedReport>> Loop::Evaluate() {
  if (setup_.held_out == nullptr) return std::nullopt;
  std::vector<int64_t> all(static_cast<size_t>(setup_.held_out->num_examples()));
  std::iota(all.begin(), all.end(), 0);
  TANDEM_ASSIGN_OR_RETURN(SupervisedReport report, model_.Evaluate(*setup_.held_out, all));
  return report;
}

// Adds the metrics that an example of the batch has.
void AddMetrics(const std::string& prefix, const std::vector<std::string>& names,
                const SupervisedReport& report, MetricsLine& line) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::isnan(report.metrics[i])) continue;
    line.Add(absl::StrCat(prefix, names[i]), report.metrics[i]);
  }
}

absl::Status Loop::Record(const SupervisedReport& report,
                          const std::optional<SupervisedReport>& held_out) {
  if (!leads()) return absl::OkStatus();
  MetricsLine line(done_, progress_.seconds);
  const std::vector<std::string> names = setup_.objective->MetricNames();
  line.Add("loss", report.loss);
  AddMetrics("", names, report, line);
  line.Add("optimizer/learning_rate", report.learning_rate);
  line.Add("optimizer/grad_norm", report.grad_norm);
  line.AddCount("num_tokens", report.num_tokens);
  if (held_out.has_value()) {
    line.Add("held_out/loss", held_out->loss);
    AddMetrics("held_out/", names, *held_out, line);
  }
  return OfStorage(metrics_->Append(line.ToJson() + "\n"));
}

// Every rank hears of a signal that any of them got.
absl::StatusOr<bool> Loop::StopAsked() {
  const bool own = setup_.stop_requested && setup_.stop_requested();
  TANDEM_ASSIGN_OR_RETURN(const double any, model_.MaxOverRanks(own ? 1 : 0));
  return any > 0;
}

// The first update is made on the weights of the model directory.
absl::Status Loop::NotFinite(const std::string& what) const {
  return WithExitCode(
      Internal(what, ", which is not finite: ",
               done_ == 1 ? "look for such numbers in the weights of --model, or try" : "try",
               " a smaller learning rate"),
      ExitCode::kTooManySkipped);
}

// Every rank looks at what it holds. Weights that are not finite are not written.
absl::Status Loop::CheckWeights() {
  TANDEM_ASSIGN_OR_RETURN(const bool finite, model_.WeightsAreFinite());
  return finite ? absl::OkStatus() : NotFinite(absl::StrCat("a weight after update ", done_));
}

absl::StatusOr<SupervisedReport> Loop::Update() {
  const std::vector<int64_t> batch = BatchOf(options_, setup_.objective->num_examples(), done_);
  TANDEM_ASSIGN_OR_RETURN(SupervisedReport report, model_.Train(*setup_.objective, batch));
  ++done_;
  if (report.skipped) {
    return NotFinite(absl::StrCat("update ", done_, " has a loss of ", report.loss,
                                  " and a gradient norm of ", report.grad_norm));
  }
  progress_.done = done_;
  progress_.total = total_;
  ++progress_.done_here;
  progress_.seconds = MonotonicSeconds() - started_;
  progress_.num_tokens += report.num_tokens;
  progress_.report = report;
  return report;
}

absl::StatusOr<SupervisedOutcome> Loop::Run() {
  TANDEM_RETURN_IF_ERROR(setup_.resume ? Resume() : Begin());
  if (leads()) {
    auto metrics = AppendFile::Open(MetricsOf(setup_.out));
    if (!metrics.ok()) return OfStorage(metrics.status());
    metrics_ = *std::move(metrics);
  }
  started_ = MonotonicSeconds();
  SupervisedOutcome outcome = {.total = total_};
  while (done_ < total_) {
    absl::StatusOr<SupervisedReport> report = Update();
    if (!report.ok()) return OfRanks(report.status());
    outcome.last = *report;
    outcome.held_out.reset();
    const bool every = options_.evaluate_every > 0 && done_ % options_.evaluate_every == 0;
    if (done_ == total_ || every) {
      TANDEM_RETURN_IF_ERROR(OfRanks(CheckWeights()));
      auto held_out = Evaluate();
      if (!held_out.ok()) return OfRanks(held_out.status());
      outcome.held_out = *std::move(held_out);
    }
    TANDEM_RETURN_IF_ERROR(Record(*report, outcome.held_out));
    if (leads() && setup_.on_progress) setup_.on_progress(progress_);
    if (done_ == total_) break;
    auto stop = StopAsked();
    if (!stop.ok()) return OfRanks(stop.status());
    const bool due = options_.checkpoint_every > 0 && done_ % options_.checkpoint_every == 0;
    if (due || *stop) {
      TANDEM_RETURN_IF_ERROR(OfRanks(CheckWeights()));
      TANDEM_RETURN_IF_ERROR(Save());
    }
    if (*stop) {
      outcome.stopped = true;
      break;
    }
  }
  outcome.num_updates = done_;
  return outcome;
}

}  // namespace

absl::Status CheckRunDirectory(const std::string& out, bool resume) {
  std::error_code ignored;
  const bool has_any = fs::exists(CheckpointsOf(out) + "/LATEST", ignored);
  if (has_any && !resume) {
    return AlreadyExists(out,
                         " holds a run that did not end; go on with --resume, or choose another "
                         "--out");
  }
  if (!has_any && resume) {
    return NotFound(out, " holds no checkpoint to resume from; leave --resume out");
  }
  return absl::OkStatus();
}

absl::Status CheckSameSettings(const std::string& was, const std::string& now) {
  const std::vector<std::string> before = FixedLines(was), current = FixedLines(now);
  for (size_t i = 0; i < std::max(before.size(), current.size()); ++i) {
    const std::string a = i < before.size() ? before[i] : "nothing";
    const std::string b = i < current.size() ? current[i] : "nothing";
    if (a == b) continue;
    return InvalidArgument("the run was started with `", a, "`, not `", b,
                           "`: resume it with the options it had, or start another run with its "
                           "checkpoint as --model");
  }
  return absl::OkStatus();
}

absl::StatusOr<SupervisedOutcome> TrainSupervised(const SupervisedOptions& options,
                                                  const SupervisedRunSetup& setup) {
  return Loop(options, setup).Run();
}

}  // namespace tandem::trainer
