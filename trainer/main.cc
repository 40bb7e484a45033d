// trainer: trains one model with groups from rollout servers until the steps are done or SIGTERM.
#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/exit_codes.h"
#include "common/base/version.h"
#include "common/options/command_line.h"
#include "common/process/libtorch_program.h"
#include "common/process/memory.h"
#include "trainer/presets.h"
#include "trainer/run_trainer.h"

namespace tandem::trainer {
namespace {

int Main(int argc, char** argv) {
  TrainerOptions options;
  OptionBinder binder;
  binder.Section("trainer", "trainer", options);
  for (const char* other : {"server", "launch", "drift"}) binder.Ignore(other);

  CLI::App app("Trainer: improves a model with groups sampled by rollout servers.", "trainer");
  std::string config, servers, progress;
  std::vector<std::string> sets;
  bool resume = false, resume_or_start = false, clean = false, dry_run = false, help_config = false,
       version = false;
  app.add_option("--config", config, "run file; its section `trainer` is read");
  AddSetFlag(app, sets, "after the file: trainer.steps=10");
  app.add_option("--servers", servers, "HOST:PORT,HOST:PORT: in place of trainer.servers");
  app.add_option_function<std::string>(
         "--numerics", [&sets](const std::string& v) { sets.push_back("trainer.numerics=" + v); },
         "in place of trainer.numerics")
      ->check(CLI::IsMember({"fast", "invariant", "exact"}));
  app.add_option("--progress", progress, "json: steps, events and phases as JSON lines on stdout")
      ->check(CLI::IsMember({"json"}));
  CLI::Option* const resume_flag = app.add_flag("--resume", resume, "go on from a checkpoint");
  CLI::Option* const clean_flag =
      app.add_flag("--clean", clean, "delete the run that is there first")->excludes(resume_flag);
  app.add_flag("--resume-or-start", resume_or_start,
               "go on if there is a run, else start it: for launchers that start processes again")
      ->excludes(resume_flag)
      ->excludes(clean_flag);
  app.add_flag("--dry-run", dry_run, "print the resolved configuration and the plan");
  app.add_flag("--help-config", help_config, "print every option of section `trainer`");
  app.add_flag("--version", version, "print the version");
  EndHelp(app, "", "trainer --config run.yaml --servers 127.0.0.1:50051");
  if (const std::optional<int> code = ParseCommandLine(app, argc, argv)) return *code;
  if (version) {
    std::cout << "trainer " << ProjectVersion() << " (" << GitCommit() << ")\n";
    return 0;
  }
  const absl::Status status = LoadOverPreset(
      binder, options.preset,
      [&] { return config.empty() ? absl::OkStatus() : binder.LoadFile(config); },
      [&] {
        absl::Status read;
        for (const std::string& set : sets) read.Update(binder.Set(set));
        return read;
      });
  if (!status.ok()) return Fail(status, ExitCode::kUsage);
  if (help_config) {
    std::cout << binder.Help();
    return 0;
  }
  if (!servers.empty()) options.servers = absl::StrSplit(servers, ',', absl::SkipEmpty());
  WeighRewards(options);
  if (absl::Status bad = CheckOptions(options); !bad.ok()) {
    return Fail(bad, ExitCodeOf(WithExitCode(bad, ExitCode::kUsage)));
  }
  if (absl::Status bad = PinModels(resume || resume_or_start, options); !bad.ok()) {
    return Fail(bad, ExitCode::kBadModelOrData);
  }
  if (dry_run) {
    std::cout << binder.ToYaml() << "\n" << DescribePlan(options);
    return 0;
  }
  TrainerContext context = {.resolved_config = binder.ToYaml()};
  if (resume || clean) context.mode = resume ? RunMode::kResume : RunMode::kClean;
  if (resume_or_start) context.mode = RunMode::kResumeOrFresh;
  if (!progress.empty()) {
    context.progress = [](const std::string& line) { std::cout << line << std::endl; };
  }
  if (options.learner.device == Device::kCpu) KeepFreedMemory();
  return RunTrainer(std::move(options), std::move(context));
}

}  // namespace
}  // namespace tandem::trainer

[[gnu::section(".preinit_array"), gnu::used]] static auto* before_libraries =
    &tandem::EnsurePassiveThreads;

int main(int argc, char** argv) {
  tandem::ExitWithoutDestructors(tandem::trainer::Main(argc, argv));
}
