// tandem drift phase: a toy policy that collapses under injected gaps (training-inference
// mismatches): its phase diagram over corrections, how early each metric announces a collapse, and
// which kind of gap costs most at equal KL. Continues where it was interrupted.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/drift/progress_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"
#include "common/process/stop_signal.h"
#include "drift_lab/phase/grid.h"
#include "drift_lab/phase/phase_report.h"

namespace tandem::cli {
namespace {

struct PhaseFlags {
  std::string study = "table";
  int seeds = 5;
  int steps = 800;
  double context_noise = drift::WarmStartOptions().context_noise;
  std::vector<std::string> cells, methods;
  std::string out;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
};

bool Wants(const PhaseFlags& flags, const std::string& study) {
  return flags.study == "all" || flags.study == study;
}

bool IsNamed(const std::vector<std::string>& names, std::string_view name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<drift::Cell> Chosen(const PhaseFlags& flags, std::vector<drift::Cell> cells) {
  std::erase_if(cells, [&](const drift::Cell& cell) { return !IsNamed(flags.cells, cell.name); });
  for (drift::Cell& cell : cells) {
    cell = drift::WithContextNoise(std::move(cell), flags.context_noise);
  }
  return cells;
}

std::vector<drift::Method> ChosenMethods(const PhaseFlags& flags,
                                         std::span<const drift::Method> of) {
  std::vector<drift::Method> methods;
  for (const drift::Method method : of) {
    if (IsNamed(flags.methods, drift::MethodName(method))) methods.push_back(method);
  }
  return methods;
}

std::vector<drift::Cell> ChosenCells(const PhaseFlags& flags) {
  return Chosen(flags, drift::PhaseCells(flags.steps));
}

std::vector<drift::Cell> ChosenKinds(const PhaseFlags& flags) {
  return Chosen(flags, drift::KindCells(flags.steps));
}

drift::Cell NoGap(const PhaseFlags& flags) {
  return drift::WithContextNoise(drift::PhaseCells(flags.steps).front(), flags.context_noise);
}

std::vector<drift::PlannedRun> TablePlan(const PhaseFlags& flags) {
  return drift::Plan(ChosenCells(flags), ChosenMethods(flags, drift::AllMethods()), flags.seeds);
}

std::vector<drift::PlannedRun> KindsPlan(const PhaseFlags& flags) {
  std::vector<drift::Cell> cells = ChosenKinds(flags);
  cells.insert(cells.begin(), NoGap(flags));
  return drift::Plan(cells, ChosenMethods(flags, drift::KindMethods()), flags.seeds);
}

std::vector<drift::PlannedRun> PlanOf(const PhaseFlags& flags) {
  std::vector<drift::PlannedRun> plan;
  if (Wants(flags, "table") || Wants(flags, "predictors")) plan = TablePlan(flags);
  if (Wants(flags, "kinds")) {
    const auto kinds = KindsPlan(flags);
    // Runs without a gap may already be in the plan of the table.
    std::copy_if(kinds.begin(), kinds.end(), std::back_inserter(plan), [&](const auto& run) {
      return std::none_of(plan.begin(), plan.end(), [&](const auto& planned) {
        return planned.cell.name == run.cell.name && planned.method == run.method &&
               planned.seed == run.seed;
      });
    });
  }
  return plan;
}

// Judges the predictors on the wanted runs of the plan whose completions have 8 tokens.
template <typename Wanted>
drift::Population Judge(const std::string& title, const std::vector<drift::PlannedRun>& plan,
                        const drift::RunStore& store, const Wanted& wanted) {
  std::vector<drift::WatchedRun> runs;
  for (const drift::PlannedRun& planned : plan) {
    const drift::RunResult* run = store.Find(planned);
    if (run == nullptr || planned.cell.length != drift::Cell().length) continue;
    if (wanted(planned.cell)) runs.push_back({static_cast<int>(planned.seed), run});
  }
  return {title, drift::StudyPrediction(runs)};
}

// Judges them on the runs of the table and, if they are made too, on those of the kinds.
std::vector<drift::Population> JudgePredictors(const PhaseFlags& flags,
                                               const drift::RunStore& store) {
  const auto table = TablePlan(flags);
  const auto any = [](const drift::Cell&) { return true; };
  const auto is_stale = [](const drift::Cell& cell) {
    return cell.gap.kind == drift::GapKind::kNone;
  };
  std::vector<drift::Population> populations = {
      Judge("All gaps of the table", table, store, any),
      Judge("Staleness: lags, and no gap", table, store, is_stale),
      Judge("Samplers: noise, uniform tokens, temperature", table, store,
            [&](const drift::Cell& cell) { return !is_stale(cell); })};
  if (Wants(flags, "kinds")) {
    populations.push_back(Judge("Kinds of gap at equal KL", KindsPlan(flags), store, any));
  }
  return populations;
}

drift::PhaseReport MakeReport(const PhaseFlags& flags, const drift::RunStore& store) {
  drift::PhaseReport report{.date = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()),
                            .commit = std::string(GitCommit()),
                            .num_seeds = flags.seeds,
                            .steps = flags.steps};
  if (Wants(flags, "table")) {
    report.table = drift::MakePhaseTable(
        ChosenCells(flags), ChosenMethods(flags, drift::AllMethods()), flags.seeds, store);
  }
  if (Wants(flags, "predictors")) report.populations = JudgePredictors(flags, store);
  if (Wants(flags, "kinds")) {
    report.kinds =
        drift::MakeKindEffects(ChosenKinds(flags), NoGap(flags),
                               ChosenMethods(flags, drift::KindMethods()), flags.seeds, store);
  }
  return report;
}

absl::Status MakeRuns(const PhaseFlags& flags, drift::RunStore& store) {
  StopSignal stop;
  StudyLine line;
  const drift::GridHooks hooks{
      .on_progress =
          [&](int64_t done, int64_t total, const drift::PlannedRun& last) {
            line.Show(done, total,
                      absl::StrCat(last.cell.name, " ", drift::MethodName(last.method)));
          },
      .should_stop = [&stop] { return stop.Requested(); }};
  return StoppedBy(stop,
                   drift::RunGrid(PlanOf(flags), flags.threads, drift::MakeRun, store, hooks));
}

absl::Status Phase(const PhaseFlags& flags) {
  TANDEM_RETURN_IF_ERROR(MakeDirectories(flags.out));
  TANDEM_ASSIGN_OR_RETURN(const auto store, drift::RunStore::Open(flags.out + "/runs.jsonl"));
  TANDEM_RETURN_IF_ERROR(MakeRuns(flags, *store));
  const drift::PhaseReport report = MakeReport(flags, *store);
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(flags.out + "/summary.json", ToJson(report)));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(flags.out + "/phase.md", ToMarkdown(report)));
  std::printf("%s/phase.md\n", flags.out.c_str());
  return absl::OkStatus();
}

// "" if the name is right, otherwise an error that lists the names.
std::string CheckCell(const std::string& name) {
  std::vector<std::string> names;
  for (const drift::Cell& cell : drift::PhaseCells(1)) names.push_back(cell.name);
  for (const drift::Cell& cell : drift::KindCells(1)) names.push_back(cell.name);
  if (IsNamed(names, name)) return "";
  return absl::StrCat("no cell \"", name, "\"; there are ", absl::StrJoin(names, ", "));
}
std::string CheckMethod(const std::string& name) {
  if (drift::MethodNamed(name).has_value()) return "";
  std::vector<const char*> names;
  for (const drift::Method method : drift::AllMethods()) names.push_back(drift::MethodName(method));
  return absl::StrCat("no method \"", name, "\"; there are ", absl::StrJoin(names, ", "));
}

}  // namespace

void AddDriftPhaseCommand(CLI::App& drift, Action& chosen) {
  auto flags = std::make_shared<PhaseFlags>();
  CLI::App* sub = drift.add_subcommand(
      "phase", "A toy policy under injected gaps: which collapse, which correction saves it");
  AddChoice(sub, "--study", flags->study, {"table", "predictors", "kinds", "all"},
            "table: gaps x methods; predictors: how early metrics see a collapse, on the "
            "table's runs; kinds: kinds of gap at equal KL");
  AddRange(sub, "--seeds", flags->seeds, 1, 1000, "of task, start and samples: 1 to this");
  AddRange(sub, "--steps", flags->steps, 1, 1000000,
           "of a run; completions of 24 tokens take half of them");
  AddShare(sub, "--context-noise", flags->context_noise,
           "share of previous tokens the warm start replaces by random ones");
  sub->add_option("--cells", flags->cells, "only these gaps, for instance lag_64,temperature_0.7")
      ->delimiter(',')
      ->check(CheckCell);
  sub->add_option("--methods", flags->methods, "only these, for instance none,token_tis")
      ->delimiter(',')
      ->check(CheckMethod);
  sub->add_option("--out", flags->out,
                  "directory for runs.jsonl, summary.json and phase.md; runs already in it are "
                  "not made again")
      ->required();
  AddRange(sub, "--threads", flags->threads, 1, 1024, "runs side by side");
  EndHelp(*sub, "",
          "tandem drift phase --out phase --seeds 2 --cells lag_64 --methods none,token_tis");
  SetAction(*sub, chosen, [flags] { return ExitAfterStudy(Phase(*flags)); });
}

}  // namespace tandem::cli
