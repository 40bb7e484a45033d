// tandem drift calibrate: the lab against faults of known kind and size, on the real engine:
// falsely named causes, slope, coverage, detection, confusion, abstention. Continues where it was
// interrupted.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/drift/progress_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_directory.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"
#include "common/process/stop_signal.h"
#include "drift_lab/calibration/calibration_study.h"
#include "drift_lab/calibration/calibration_tables.h"
#include "drift_lab/calibration/injectors.h"

namespace tandem::cli {
namespace {

struct CalibrateFlags {
  drift::CalibrationGrid grid;
  drift::TrialStudy study;
  std::string out;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
};

// The subject must have a tokenizer, but its vocabulary does not matter, because ids are random.
constexpr char kTokenizerText[] =
    "The two engines score the same tokens, and the lab says why their numbers differ. "
    "A server draws, a trainer scores again; what one claims the other replays.";

absl::StatusOr<std::unique_ptr<drift::Subject>> MakeSubject(const CalibrateFlags& flags) {
  const std::string model = flags.out + "/model";
  std::error_code ignored;
  if (!std::filesystem::exists(model + "/config.json", ignored)) {
    ModelConfig shape = FreshModelShape();
    shape.tie_word_embeddings = false;
    TANDEM_RETURN_IF_ERROR(
        WriteFreshModel(model, shape, kTokenizerText, flags.study.seed).status());
  }
  return drift::Subject::Make(model, flags.out, flags.study.seed);
}

absl::Status MakeTrials(const CalibrateFlags& flags, const drift::Subject& subject,
                        drift::TrialStore& store) {
  StopSignal stop;
  StudyLine line;
  const drift::CalibrationHooks hooks{
      .on_progress =
          [&](int64_t done, int64_t total, const drift::PlannedTrial& last) {
            line.Show(done, total, absl::StrCat(last.fault, " x ", last.strength));
          },
      .should_stop = [&stop] { return stop.Requested(); }};
  return StoppedBy(stop, drift::RunTrials(subject, flags.study.shape, drift::PlanTrials(flags.grid),
                                          flags.threads, store, hooks));
}

std::string CommandOf(const CalibrateFlags& flags) {
  std::string command =
      absl::StrCat("tandem drift calibrate --out DIR --captures ", flags.grid.captures, " --nulls ",
                   flags.grid.healthy, " --seed ", flags.study.seed);
  if (!flags.grid.faults.empty())
    absl::StrAppend(&command, " --faults ", absl::StrJoin(flags.grid.faults, ","));
  return command;
}

absl::Status Calibrate(const CalibrateFlags& flags) {
  TANDEM_RETURN_IF_ERROR(MakeDirectories(flags.out));
  TANDEM_ASSIGN_OR_RETURN(const auto store,
                          drift::TrialStore::Open(flags.out + "/trials.jsonl", flags.study));
  TANDEM_ASSIGN_OR_RETURN(const auto subject, MakeSubject(flags));
  TANDEM_RETURN_IF_ERROR(MakeTrials(flags, *subject, *store));
  drift::CalibrationReport report{
      .date = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()),
      .commit = std::string(GitCommit()),
      .command = CommandOf(flags),
      .study = flags.study,
      .grid = flags.grid,
      .num_parameters = NumParameters(subject->config())};
  // The directory may have trials of a larger grid, which are left out.
  drift::Trials trials = store->All();
  const std::vector<drift::PlannedTrial> plan = drift::PlanTrials(flags.grid);
  std::erase_if(trials, [&](const auto& trial) {
    return std::ranges::find(plan, trial.first) == plan.end();
  });
  report.tables = drift::MakeTables(trials);
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(flags.out + "/calibration.json", ToJson(report)));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(flags.out + "/calibration.md", ToMarkdown(report)));
  std::printf("%s/calibration.md\n", flags.out.c_str());
  return absl::OkStatus();
}

// "" if the name is right, otherwise an error that lists the names.
std::string CheckFault(const std::string& name) {
  if (drift::FaultOf({name, 1, 1}).ok()) return "";
  std::vector<std::string> names = {"none"};
  for (const drift::Injector& injector : drift::AllInjectors()) names.emplace_back(injector.name);
  for (const drift::UnmodelledFault& fault : drift::AllUnmodelled()) names.emplace_back(fault.name);
  return absl::StrCat("no fault \"", name, "\"; there are ", absl::StrJoin(names, ", "),
                      " and pairs of the injectors, for instance temperature+top_p");
}

}  // namespace

void AddDriftCalibrateCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* sub = drift.add_subcommand(
      "calibrate",
      "The lab against injected faults of known kind and size: is it right, and how often?");
  sub->add_option("--out", flags->out,
                  "directory for trials.jsonl, calibration.json and calibration.md; trials already "
                  "in it are not made again")
      ->required();
  AddRange(sub, "--captures", flags->grid.captures, 1, 100000,
           "of each injector, over its strengths; of a pair an eighth, of an unmodelled "
           "fault a quarter as many");
  AddRange(sub, "--nulls", flags->grid.healthy, 0, 100000, "captures without a fault");
  sub->add_option("--faults", flags->grid.faults, "only these, for instance none,temperature,top_p")
      ->delimiter(',')
      ->check(CheckFault);
  sub->add_option("--seed", flags->study.seed, "of the model's weights")->capture_default_str();
  AddRange(sub, "--threads", flags->threads, 1, 1024, "trials side by side");
  EndHelp(*sub, "",
          "tandem drift calibrate --out calibration --captures 4 --nulls 4 --faults none,top_p");
  SetAction(*sub, chosen, [flags] { return ExitAfterStudy(Calibrate(*flags)); });
}

}  // namespace tandem::cli
