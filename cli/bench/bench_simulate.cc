// tandem bench simulate: simulates servers and trainer on many GPUs, or compares a recorded run
// with its simulation.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/simulate/run_check.h"
#include "cli/simulate/sweep.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct SimulateFlags {
  std::string model = "7b", split, constants_file, check, fit, push = "collective";
  std::vector<int64_t> gpus = {8, 16, 32, 64, 128, 256, 512, 1024};
  int64_t tensor_parallel = 0;
  double prompts_per_gpu = 0;
  simulate::Workload workload;
  bool dense = false, ranges = false, print_constants = false, markdown = false;
  JsonFlags json;
};

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

absl::Status Check(const SimulateFlags& flags) {
  simulate::Constants machine = simulate::MachineConstants();
  if (!flags.constants_file.empty()) {
    TANDEM_RETURN_IF_ERROR(simulate::ReadConstants(flags.constants_file, &machine));
  }
  TANDEM_ASSIGN_OR_RETURN(const simulate::RecordedRun run, simulate::ReadRun(flags.check));
  simulate::Scales scales;
  if (!flags.fit.empty()) {
    if (flags.fit == flags.check) {
      return absl::InvalidArgumentError(
          "--fit: a prediction must not be fitted to the run that it predicts; name another");
    }
    TANDEM_ASSIGN_OR_RETURN(const simulate::RecordedRun other, simulate::ReadRun(flags.fit));
    TANDEM_ASSIGN_OR_RETURN(scales, simulate::FitScales(other, machine));
  }
  TANDEM_ASSIGN_OR_RETURN(const simulate::CheckResult result,
                          simulate::CheckRun(run, machine, scales));
  return PrintResult(flags.json, ToText(result), ToJson(result));
}

// Parses "TRAINER:ROLLOUT", the numbers of GPUs of each.
absl::StatusOr<std::pair<int64_t, int64_t>> ParseSplit(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int64_t trainer = 0, rollout = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &trainer) ||
      !absl::SimpleAtoi(parts[1], &rollout) || trainer < 1 || rollout < 1) {
    return InvalidArgument("--split ", text, ": want TRAINER:ROLLOUT, GPUs of each");
  }
  return std::pair(trainer, rollout);
}

simulate::Workload WorkloadOf(const SimulateFlags& flags, int64_t gpus) {
  simulate::Workload workload = flags.workload;
  if (flags.prompts_per_gpu > 0) {
    workload.prompts = std::max<int64_t>(
        1, static_cast<int64_t>(flags.prompts_per_gpu * static_cast<double>(gpus)));
  }
  return workload;
}

absl::StatusOr<simulate::SizeResult> RunOne(const SimulateFlags& flags,
                                            const simulate::ModelShape& shape, int64_t gpus,
                                            const simulate::Constants& constants) {
  const simulate::Workload workload = WorkloadOf(flags, gpus);
  if (flags.split.empty()) return RunSize(shape, gpus, workload, constants);
  TANDEM_ASSIGN_OR_RETURN(const auto split, ParseSplit(flags.split));
  simulate::SizeResult size{.gpus = gpus};
  TANDEM_ASSIGN_OR_RETURN(size.splits.emplace_back(),
                          RunSplit(shape, split.first, split.second, workload, constants));
  return size;
}

absl::Status Simulate(SimulateFlags flags) {
  if (!flags.check.empty()) return Check(flags);
  if (!flags.fit.empty()) return absl::InvalidArgumentError("--fit goes with --check");
  simulate::Constants constants = simulate::ClusterConstants();
  if (!flags.constants_file.empty()) {
    TANDEM_RETURN_IF_ERROR(simulate::ReadConstants(flags.constants_file, &constants));
  }
  if (flags.print_constants) {
    Print(flags.markdown ? constants.ToMarkdown() : constants.ToJson());
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(simulate::ModelShape shape, simulate::NamedShape(flags.model));
  if (flags.tensor_parallel > 0) shape.tensor_parallel = flags.tensor_parallel;
  flags.workload.delta = !flags.dense;
  flags.workload.stream = flags.push == "stream";
  if (!flags.split.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const auto split, ParseSplit(flags.split));
    flags.gpus = {split.first + split.second};
  }
  LiveLine live;
  std::vector<simulate::SizeResult> sizes;
  for (const int64_t gpus : flags.gpus) {
    live.Update(absl::StrCat("bench simulate: ", gpus, " GPUs"));
    TANDEM_ASSIGN_OR_RETURN(sizes.emplace_back(), RunOne(flags, shape, gpus, constants));
  }
  std::vector<simulate::RangeEffect> effects;
  if (flags.ranges) {
    live.Update("bench simulate: ranges");
    TANDEM_ASSIGN_OR_RETURN(effects, RunRanges(shape, flags.gpus.back(),
                                               WorkloadOf(flags, flags.gpus.back()), constants));
  }
  live.Clear();
  std::string text = ToText(shape, sizes);
  if (!effects.empty()) text += "\n" + ToText(effects);
  return PrintResult(flags.json, text, ToJson(shape, flags.workload, sizes, effects));
}

std::string CheckLengths(const std::string& text) {
  return std::string(simulate::LengthDistribution::Parse(text).status().message());
}

void AddWorkload(CLI::App* sub, SimulateFlags* flags) {
  simulate::Workload& workload = flags->workload;
  CLI::Option* prompts =
      AddRange(sub, "--prompts", workload.prompts, 1, 1 << 20, "prompts (groups) per train step");
  sub->add_option("--prompts-per-gpu", flags->prompts_per_gpu,
                  "prompts per GPU, instead of --prompts")
      ->check(CLI::PositiveNumber)
      ->excludes(prompts);
  AddRange(sub, "--group-size", workload.group, 1, 4096, "completions of a prompt");
  AddRange(sub, "--prompt-tokens", workload.prompt_tokens, 1, 1 << 20, "tokens of a prompt");
  sub->add_option("--lengths", workload.lengths,
                  "lengths of completions: fixed:N, uniform:LOW-HIGH or lognormal:MEAN:SIGMA:LIMIT")
      ->check(CheckLengths)
      ->capture_default_str();
  AddRange(sub, "--staleness", workload.max_staleness, 0, 64, "trainer.max_staleness");
  AddRange(sub, "--steps", workload.steps, 1, 1000,
           "train steps, after the S + 1 that fill the pipeline");
  sub->add_option("--seed", workload.seed, "seed of the lengths")->capture_default_str();
}

}  // namespace

void AddBenchSimulateCommand(CLI::App& bench, Action& chosen) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* sub = bench.add_subcommand("simulate",
                                       "Simulates servers and trainer on many GPUs; --check "
                                       "compares a recorded run with its simulation");
  AddChoice(sub, "--model", flags->model, {"7b", "70b"}, "shape of the model");
  CLI::Option* gpus =
      sub->add_option("--gpus", flags->gpus, "numbers of GPUs; each gets its best split")
          ->delimiter(',')
          ->check(CLI::Range(2, 16384))
          ->capture_default_str();
  sub->add_option("--split", flags->split, "TRAINER:ROLLOUT: numbers of GPUs of this split alone")
      ->excludes(gpus);
  sub->add_option("--tensor-parallel", flags->tensor_parallel, "GPUs per server (7b: 1, 70b: 8)")
      ->check(CLI::Range(1, 64));
  AddWorkload(sub, flags.get());
  AddChoice(sub, "--push", flags->push, {"collective", "stream"},
            "transport of the weights: collective or stream");
  sub->add_flag("--dense", flags->dense, "push whole tensors, not deltas");
  sub->add_option("--constants", flags->constants_file,
                  "JSON file of constants that override the built-in ones, each with its source");
  sub->add_flag("--print-constants", flags->print_constants,
                "print the constants with their sources");
  sub->add_flag("--markdown", flags->markdown, "print the constants as a Markdown table");
  sub->add_flag(
      "--ranges", flags->ranges,
      "also print how the range of each assumption changes the result of the largest size");
  sub->add_option("--check", flags->check,
                  "RUN directory: print predicted and recorded times, step by step");
  sub->add_option(
      "--fit", flags->fit,
      "with --check: another RUN at staleness 0, to which the speed of the machine is fitted");
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub, "", "tandem bench simulate --model 7b --gpus 8,64 --steps 5");
  // Errors in a run directory or in a file of constants are errors of the command line that names
  // it.
  SetAction(*sub, chosen, [flags] { return Finish(AsUsageError(Simulate(*flags))); });
}

}  // namespace tandem::cli
