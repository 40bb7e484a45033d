#include "cli/pipeline/pipeline_run.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/io/live_line.h"
#include "cli/pipeline/pipeline_file.h"
#include "cli/pipeline/stage_command.h"
#include "cli/pipeline/stage_files.h"
#include "cli/pipeline/stage_process.h"
#include "cli/pipeline/stage_record.h"
#include "cli/run_file/launch_options.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;
using trainer::WithExitCode;

constexpr double kPipelineLockSeconds = 5;

absl::Status OfStorage(const absl::Status& status) {
  return WithExitCode(status, ExitCode::kStorage);
}

absl::Status Remove(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? OfStorage(Unavailable(path, ": ", error.message())) : absl::OkStatus();
}

class Pipeline {
 public:
  Pipeline(PipelineFile file, std::vector<StageCommand> commands)
      : file_(std::move(file)), commands_(std::move(commands)) {}

  absl::Status CheckInputs() const;
  // Reads pipeline.json and forgets the stages from `first` on; a copy of what it forgets stays on
  // disk until Begin.
  absl::Status ReadRecords(std::optional<size_t> first);
  absl::Status PrintPlan();
  absl::StatusOr<ExitCode> Run();

 private:
  size_t size() const { return file_.stages.size(); }
  std::string records_path() const { return file_.directory() + "/pipeline.json"; }
  std::string Title(size_t index) const;
  bool IsMadeHere(const std::string& path) const;
  absl::StatusOr<StageIdentity> IdentityOf(size_t index);
  absl::StatusOr<ExitCode> RunStage(size_t index);
  absl::StatusOr<ExitCode> RunCommands(size_t index, StageAction action);
  absl::StatusOr<ExitCode> RunCommand(size_t index, const std::vector<std::string>& arguments);
  absl::Status Finish(size_t index);
  absl::Status WriteRecords() const;

  const PipelineFile file_;
  const std::vector<StageCommand> commands_;
  std::vector<StageRecord> records_;
  std::map<std::string, std::string> digests_;  // of inputs from outside, by path
  std::vector<std::string> forgotten_;          // directories of stages that are to be done again
  std::unique_ptr<StopSignal> stop_;
};

std::string Pipeline::Title(size_t index) const {
  const Stage& stage = file_.stages[index];
  return absl::StrCat("stage ", index + 1, " of ", size(), ": ", stage.name, " (",
                      InfoOf(stage.kind).name, ")");
}

bool Pipeline::IsMadeHere(const std::string& path) const {
  return path.starts_with(file_.directory() + "/stages/");
}

absl::Status Pipeline::CheckInputs() const {
  std::vector<std::string> missing;
  for (size_t i = 0; i < size(); ++i) {
    for (const std::string& path : commands_[i].inputs) {
      std::error_code ignored;
      if (IsMadeHere(path) || fs::exists(path, ignored)) continue;
      missing.push_back(
          absl::StrCat("stage ", file_.stages[i].name, " reads ", path, ", which is not there"));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return WithExitCode(absl::NotFoundError(absl::StrJoin(missing, "\n")), ExitCode::kBadModelOrData);
}

absl::Status Pipeline::ReadRecords(std::optional<size_t> first) {
  std::vector<std::string> names;
  for (const Stage& stage : file_.stages) names.push_back(stage.name);
  std::error_code ignored;
  if (first != 0 && fs::exists(records_path(), ignored)) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(records_path()));
    auto records = ParseStageRecords(text, records_path());
    if (!records.ok()) return WithExitCode(records.status(), ExitCode::kBadModelOrData);
    records_ = *std::move(records);
  }
  const size_t kept = std::min(records_.size(), first.value_or(records_.size()));
  for (size_t i = kept; i < records_.size(); ++i) forgotten_.push_back(records_[i].directory);
  records_.resize(kept);
  if (first == 0) forgotten_ = {file_.directory() + "/stages"};
  TANDEM_RETURN_IF_ERROR(CheckSameOrder(records_, names));
  records_.resize(size());
  for (size_t i = 0; i < size(); ++i) {
    records_[i].name = names[i];
    records_[i].directory = file_.StageDirectory(i);
  }
  return absl::OkStatus();
}

// The inputs that an earlier stage made have the digest that was taken when they were made.
absl::StatusOr<StageIdentity> Pipeline::IdentityOf(size_t index) {
  StageIdentity identity = {.kind = InfoOf(file_.stages[index].kind).name,
                            .options = commands_[index].options};
  for (const std::string& path : commands_[index].inputs) {
    std::string digest;
    for (const StageRecord& record : records_) {
      const auto made = record.output_digests.find(path);
      if (made != record.output_digests.end()) digest = made->second;
    }
    if (digest.empty() && !IsMadeHere(path)) {
      if (!digests_.contains(path)) {
        auto of_path = DigestOfPath(path);
        if (!of_path.ok()) return WithExitCode(of_path.status(), ExitCode::kBadModelOrData);
        digests_[path] = *of_path;
      }
      digest = digests_[path];
    }
    identity.inputs[path] = digest;
  }
  return identity;
}

absl::Status Pipeline::PrintPlan() {
  absl::PrintF("pipeline %s: %d stages in %s\n", file_.name, size(), file_.directory());
  bool earlier_are_done = CheckInputs().ok();  // else no digest says what is done
  for (size_t i = 0; i < size(); ++i) {
    const StageRecord& record = records_[i];
    std::string next = "is to be done";
    if (earlier_are_done) {
      TANDEM_ASSIGN_OR_RETURN(const StageIdentity identity, IdentityOf(i));
      TANDEM_ASSIGN_OR_RETURN(const StageAction action,
                              NextAction(record, identity, FindEvidence(file_, i)));
      if (action == StageAction::kSkip || action == StageAction::kFinish) next = "is done";
      if (action == StageAction::kResume) next = "is to be resumed";
      earlier_are_done = next == "is done";
    }
    absl::PrintF("%s: %s\n", Title(i), next);
    for (const std::string& path : commands_[i].inputs) absl::PrintF("  reads   %s\n", path);
    for (const char* const output : InfoOf(file_.stages[i].kind).outputs) {
      absl::PrintF("  writes  %s\n", file_.OutputPath(i, output));
    }
    absl::PrintF("  command tandem %s\n", absl::StrJoin(commands_[i].arguments, " "));
  }
  return absl::OkStatus();
}

absl::Status Pipeline::WriteRecords() const {
  return OfStorage(WriteFileAtomically(records_path(), ToJson(file_.name, file_.path, records_)));
}

absl::StatusOr<ExitCode> Pipeline::RunCommand(size_t index,
                                              const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {ProgramDirectory() + "/tandem"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const std::string log = file_.StageDirectory(index) + "/log.txt";
  const auto end = RunStageProcess("stage " + file_.stages[index].name, argv, log, *stop_);
  if (!end.ok()) return WithExitCode(end.status(), ExitCode::kChildDied);
  if (end->exit_code == 0) return ExitCode::kOk;
  if (end->signal != 0 && stop_->Requested()) return ExitCodeOfSignal(stop_->signal());
  const ExitCode code =
      end->signal != 0 ? ExitCode::kChildDied : static_cast<ExitCode>(end->exit_code);
  if (!IsStop(code)) {
    std::fprintf(stderr, "tandem: %s ended with %s: its lines are in %s\n", Title(index).c_str(),
                 end->ToString().c_str(), log.c_str());
  }
  return code;
}

// The command of the stage; for rl also the one that makes a model directory of its last weights.
absl::StatusOr<ExitCode> Pipeline::RunCommands(size_t index, StageAction action) {
  const std::string directory = file_.StageDirectory(index);
  const StageCommand& command = commands_[index];
  if (action == StageAction::kStart) TANDEM_RETURN_IF_ERROR(Remove(directory));
  TANDEM_RETURN_IF_ERROR(OfStorage(MakeDirectories(directory)));
  std::vector<std::string> arguments = command.arguments;
  if (!command.run_file.empty()) {
    TANDEM_RETURN_IF_ERROR(
        OfStorage(WriteFileAtomically(directory + "/run.yaml", command.run_file)));
  }
  if (action == StageAction::kResume) {
    arguments.push_back("--resume");
    // A reward model whose report is missing makes its last update again.
    TANDEM_RETURN_IF_ERROR(Remove(file_.OutputPath(index, "model") + "/config.json"));
  }
  TANDEM_ASSIGN_OR_RETURN(const ExitCode code, RunCommand(index, arguments));
  if (code != ExitCode::kOk || file_.stages[index].kind != StageKind::kRl) return code;
  const std::string model = file_.OutputPath(index, "model"), partial = model + ".partial";
  TANDEM_RETURN_IF_ERROR(Remove(partial));
  TANDEM_ASSIGN_OR_RETURN(
      const ExitCode exported,
      RunCommand(index, {"export", file_.OutputPath(index, "run"), "--out", partial}));
  if (exported != ExitCode::kOk) return exported;
  std::error_code error;
  fs::rename(partial, model, error);
  if (error) return OfStorage(Unavailable(model, ": ", error.message()));
  return ExitCode::kOk;
}

absl::Status Pipeline::Finish(size_t index) {
  StageRecord& record = records_[index];
  for (const char* const output : InfoOf(file_.stages[index].kind).outputs) {
    const std::string path = file_.OutputPath(index, output);
    record.outputs[output] = path;
    TANDEM_ASSIGN_OR_RETURN(record.output_digests[path], DigestOfPath(path));
  }
  record.state = StageState::kDone;
  record.exit_code = 0;
  record.ended = UnixSeconds();
  return WriteRecords();
}

absl::StatusOr<ExitCode> Pipeline::RunStage(size_t index) {
  StageRecord& record = records_[index];
  TANDEM_ASSIGN_OR_RETURN(const StageIdentity identity, IdentityOf(index));
  TANDEM_RETURN_IF_ERROR(WaitUntilFree(file_, index));
  TANDEM_ASSIGN_OR_RETURN(const StageAction action,
                          NextAction(record, identity, FindEvidence(file_, index)));
  if (action == StageAction::kSkip) {
    std::fprintf(stderr, "%s: done before\n", Title(index).c_str());
    return ExitCode::kOk;
  }
  if (action != StageAction::kFinish) {
    std::fprintf(stderr, "%s%s\n", Title(index).c_str(),
                 action == StageAction::kResume ? ": goes on from its checkpoint" : "");
    if (action == StageAction::kStart) record.started = UnixSeconds();
    record.state = StageState::kRunning;
    record.identity = identity;
    TANDEM_RETURN_IF_ERROR(WriteRecords());
    TANDEM_ASSIGN_OR_RETURN(const ExitCode code, RunCommands(index, action));
    if (code != ExitCode::kOk) {
      if (!IsStop(code)) record.state = StageState::kFailed;
      record.exit_code = ToInt(code);
      TANDEM_RETURN_IF_ERROR(WriteRecords());
      return code;
    }
  }
  TANDEM_RETURN_IF_ERROR(Finish(index));
  std::fprintf(stderr, "%s: done in %s\n", Title(index).c_str(),
               ShortDuration(record.ended - record.started).c_str());
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Pipeline::Run() {
  stop_ = std::make_unique<StopSignal>();
  TANDEM_RETURN_IF_ERROR(WriteRecords());  // before their directories go
  for (const std::string& directory : forgotten_) TANDEM_RETURN_IF_ERROR(Remove(directory));
  for (size_t i = 0; i < size(); ++i) {
    if (stop_->Requested()) return ExitCodeOfSignal(stop_->signal());
    TANDEM_ASSIGN_OR_RETURN(const ExitCode code, RunStage(i));
    if (code != ExitCode::kOk) return code;
  }
  return ExitCode::kOk;
}

absl::StatusOr<std::optional<size_t>> FirstToDoAgain(const PipelineFile& file,
                                                     const PipelineOptions& options) {
  if (options.clean) return 0;
  if (options.from.empty()) return std::nullopt;
  const auto found = std::ranges::find(file.stages, options.from, &Stage::name);
  if (found != file.stages.end()) return static_cast<size_t>(found - file.stages.begin());
  std::vector<std::string> names;
  for (const Stage& stage : file.stages) names.push_back(stage.name);
  return InvalidArgument("--from ", options.from, ": there is no such stage; there are ",
                         absl::StrJoin(names, ", "));
}

}  // namespace

absl::StatusOr<ExitCode> RunPipeline(const PipelineOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(PipelineFile file, ReadPipelineFile(options.file, options.sets));
  std::vector<StageCommand> commands;
  for (size_t i = 0; i < file.stages.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(commands.emplace_back(), ResolveStage(file, i));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<size_t> first, FirstToDoAgain(file, options));
  const std::string directory = file.directory();
  Pipeline pipeline(std::move(file), std::move(commands));
  if (options.dry_run) {
    TANDEM_RETURN_IF_ERROR(pipeline.ReadRecords(first));
    TANDEM_RETURN_IF_ERROR(pipeline.PrintPlan());
    TANDEM_RETURN_IF_ERROR(pipeline.CheckInputs());
    return ExitCode::kOk;
  }
  TANDEM_RETURN_IF_ERROR(pipeline.CheckInputs());
  TANDEM_RETURN_IF_ERROR(OfStorage(MakeDirectories(directory)));
  const auto lock = DirectoryLock::Take(directory, kPipelineLockSeconds);
  if (!lock.ok()) return WithExitCode(lock.status(), ExitCode::kUsage);
  TANDEM_RETURN_IF_ERROR(pipeline.ReadRecords(first));
  return pipeline.Run();
}

}  // namespace tandem::cli
