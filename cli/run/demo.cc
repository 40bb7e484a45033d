// tandem demo: trains a small language model to multiply, on this machine, in minutes.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/demo_model.h"
#include "cli/run/local_run.h"
#include "cli/run/problems.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct DemoFlags {
  uint64_t seed = 1;
  int64_t steps = 0;
  std::string task = "multiply";
  std::string model;
  std::string out = "runs";
  std::string name;
  std::string rounding;
  std::vector<std::string> sets;
  bool clean = false;
  bool dry_run = false;
};

// Finds the source tree or installation: the nearest folder above the working directory, then above
// the binary, that has examples/demo.yaml, or share/tandem/examples/demo.yaml after `make install`.
absl::StatusOr<std::filesystem::path> FindTree() {
  std::error_code ignored;
  for (std::filesystem::path at :
       {std::filesystem::current_path(ignored), std::filesystem::path(ProgramDirectory())}) {
    for (; at.has_relative_path(); at = at.parent_path()) {
      for (const std::filesystem::path& tree : {at, at / "share/tandem"}) {
        if (std::filesystem::exists(tree / "examples/demo.yaml", ignored)) return tree;
      }
    }
  }
  return absl::NotFoundError(
      "examples/demo.yaml is neither above this folder nor above the "
      "program: start the demo in the source tree");
}

absl::Status WriteProblems(const std::string& folder, const DemoFlags& flags) {
  const ProblemSet problems = MakeProblems(
      flags.task == "add" ? ArithmeticTask::kAdd : ArithmeticTask::kMultiply, flags.seed);
  TANDEM_RETURN_IF_ERROR(MakeDirectories(folder));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(folder + "/train.jsonl", problems.train_jsonl));
  return WriteFileAtomically(folder + "/held_out.jsonl", problems.held_out_jsonl);
}

void Introduce(const DemoFlags& flags) {
  const bool add = flags.task == "add";
  std::fprintf(
      stderr,
      "A rollout server samples answers to \"What is a %s b?\" from SmolLM2-135M; a trainer "
      "rewards the right ones,\nupdates the model (GRPO) and pushes the new weights back over "
      "gRPC after every step. The reward should rise within\n%s steps. Drift (training-inference "
      "mismatch) is how far the log-probs of the two processes differ for the same\ntokens. Ctrl-C "
      "stops the run and saves it.\n",
      add ? "+" : "*", add ? "22" : "12");
  if (flags.model.empty()) {
    std::fprintf(stderr,
                 "The weights are de-quantised from a 4-bit file: not those that SmolLM2's authors "
                 "published, so scores of the\nstarting model are not SmolLM2's.\n");
  }
  std::fprintf(stderr, "\n");
}

void Conclude(const LocalRunResult& result) {
  const RunSummary& summary = result.summary;
  if (!summary.rewards.empty()) {
    std::fprintf(stderr, "\nmean reward: first three steps %.2f, last three %.2f\n",
                 summary.FirstRewards(), summary.LastRewards());
  }
  if (summary.first_greedy >= 0) {
    std::fprintf(stderr, "held-out problems right, greedy: %.2f before, %.2f after\n",
                 summary.first_greedy, summary.last_greedy);
  }
  std::fprintf(stderr, "%s%srun: %s\n", summary.AlertsLine().c_str(),
               summary.RestartsLine().c_str(), result.run_directory.c_str());
  if (!result.report.empty()) {
    std::fprintf(stderr, "report: %s (open it in a browser)\n", result.report.c_str());
  }
}

absl::StatusOr<LocalRunResult> Demo(const DemoFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const std::filesystem::path tree, FindTree());
  const std::string name =
      flags.name.empty() ? absl::StrCat("demo-", flags.task, "-", flags.seed) : flags.name;
  const std::string data = absl::StrCat(flags.out, "/data/", flags.task, "-", flags.seed);
  TANDEM_RETURN_IF_ERROR(WriteProblems(data, flags));
  LocalRunOptions options;
  options.config =
      (tree / (flags.task == "add" ? "examples/add.yaml" : "examples/demo.yaml")).string();
  options.clean = flags.clean;
  options.dry_run = flags.dry_run;
  const std::string model = flags.model.empty() ? DemoModelDirectory(tree).string() : flags.model;
  options.sets = {absl::StrCat("trainer.model=", model),
                  absl::StrCat("server.model=", model),
                  absl::StrCat("trainer.run.out=", flags.out),
                  absl::StrCat("trainer.run.name=", name),
                  absl::StrCat("trainer.seed=", flags.seed),
                  absl::StrCat("trainer.data.train=", data, "/train.jsonl"),
                  absl::StrCat("trainer.data.eval=", data, "/held_out.jsonl")};
  if (flags.steps > 0) options.sets.push_back(absl::StrCat("trainer.steps=", flags.steps));
  if (!flags.rounding.empty()) {
    options.sets.push_back(absl::StrCat("trainer.push.rounding=", flags.rounding));
  }
  options.sets.insert(options.sets.end(), flags.sets.begin(), flags.sets.end());
  if (!flags.dry_run) {
    Introduce(flags);
    if (flags.model.empty()) TANDEM_RETURN_IF_ERROR(MakeDemoModel(model));
  }
  return RunLocally(options);
}

int RunDemo(const DemoFlags& flags) {
  const auto result = Demo(flags);
  if (!result.ok()) return FailUsage(result.status());
  if (!flags.dry_run) Conclude(*result);
  return ToInt(result->exit_code);
}

}  // namespace

void AddDemoCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<DemoFlags>();
  CLI::App* sub =
      app.add_subcommand("demo", "A small language model learns arithmetic on this machine");
  sub->add_option("--seed", flags->seed,
                  "seed of the problems' split and order, and of the sampling")
      ->capture_default_str();
  AddNonNegative(sub, "--steps", flags->steps, "train steps; 0: as many as the run file says");
  AddChoice(sub, "--task", flags->task, {"multiply", "add"},
            "a * b with 1..9, or the harder a + b with 1..20");
  sub->add_option(
      "--model", flags->model,
      "Hugging Face directory, or a name on the Hub; default: models/smollm2-135m-instruct of a\n"
      "checkout, else that model fetched once into ~/.cache/tandem");
  sub->add_option("--out", flags->out, "directory of runs")->capture_default_str();
  sub->add_option("--name", flags->name, "name of the run; default: demo-TASK-SEED");
  sub->add_option("--rounding", flags->rounding,
                  "how a weight push rounds fp32 masters to bf16: to nearest, or dithered")
      ->check(CLI::IsMember({"nearest", "dither"}));
  AddRunNumericsFlag(sub, flags->sets);
  AddRunSetFlag(sub, flags->sets, "the run file");
  sub->add_flag("--clean", flags->clean, "delete what an earlier demo of this name left");
  sub->add_flag(
      "--dry-run", flags->dry_run,
      "start nothing: print the resolved configuration, what differs from the defaults, the plan,\n"
      "and the models and files that are missing (exit code 3)");
  EndHelp(*sub, "", "tandem demo --steps 3 --out runs --name first");
  SetAction(*sub, chosen, [flags] { return RunDemo(*flags); });
}

}  // namespace tandem::cli
