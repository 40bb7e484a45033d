#include "trainer/run/run_directory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

namespace fs = std::filesystem;

// For a process that was killed to be gone.
constexpr double kLockPatienceSeconds = 5;

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;

template <typename Range, typename Print>
std::string JsonList(const Range& range, Print print) {
  std::string json = "[";
  for (const auto& value : range) {
    if (json.size() > 1) json += ",";
    json += print(value);
  }
  return json + "]";
}

std::string Floats(const auto& values) {
  return JsonList(values, [](float value) { return JsonNumber(value); });
}

std::string FinishReasonName(rollout::v1::FinishReason reason) {
  constexpr const char* kNames[] = {"unspecified", "stop", "length", "stop_string",
                                    "stopped_early"};
  return kNames[rollout::v1::FinishReason_IsValid(reason) ? reason : 0];
}

std::string CompletionJson(const ScoredCompletion& member, std::span<const float> proximal,
                           const TokenText& token_text) {
  const rollout::v1::Completion& completion = member.completion();
  const auto integer = [](int32_t id) { return std::to_string(id); };
  const auto span = [](const rollout::v1::VersionSpan& s) {
    return absl::StrCat("[", s.weight_version(), ",", s.num_tokens(), "]");
  };
  const auto segment = [](const rollout::v1::Segment& s) {
    return absl::StrCat("[", s.given() ? "\"given\"" : "\"drawn\"", ",", s.num_tokens(), "]");
  };
  const auto when_there = [](const char* name, const auto& values) {
    return values.empty() ? "" : absl::StrCat(",\"", name, "\":", JsonList(values, [](auto value) {
                                                return JsonNumber(value);
                                              }));
  };
  return absl::StrCat(
      "{\"index\":", completion.index(), ",\"text\":", JsonText(completion.text()),
      ",\"token_ids\":", JsonList(completion.token_ids(), integer), ",\"tokens\":",
      JsonList(completion.token_ids(), [&](int32_t id) { return JsonText(token_text(id)); }),
      ",\"behaviour_logprobs\":", Floats(completion.behaviour_logprobs()),
      ",\"raw_logprobs\":", Floats(completion.raw_logprobs()),
      ",\"proximal_logprobs\":", Floats(proximal),
      ",\"entropies\":", Floats(completion.entropies()),
      ",\"versions\":", JsonList(completion.version_spans(), span),
      ",\"reward\":", JsonNumber(member.reward()),
      ",\"advantage\":", JsonNumber(member.advantage()),
      completion.segments().empty()
          ? ""
          : absl::StrCat(",\"segments\":", JsonList(completion.segments(), segment)),
      when_there("token_rewards", member.token_rewards()),
      when_there("token_advantages", member.token_advantages()),
      ",\"masked\":", member.masked() ? "true" : "false",
      ",\"drop_reason\":", JsonText(member.drop_reason()),
      ",\"finish_reason\":", JsonText(FinishReasonName(completion.finish_reason())), "}");
}

// Files that `tandem run` writes into the run directory, maybe before the trainer has opened it.
bool IsOfTheLauncher(const fs::path& path) {
  return path.filename() == "logs" || path.filename() == "restarts.jsonl";
}

bool LooksLikeARun(const std::string& path) {
  return fs::exists(path + "/events.jsonl") || fs::exists(path + "/config.yaml");
}

// The objects of a JSON lines file; a line cut short by a crash is none.
std::vector<nlohmann::json> ParsedLines(const std::string& contents) {
  std::vector<nlohmann::json> objects;
  std::istringstream lines(contents);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) objects.push_back(std::move(parsed));
  }
  return objects;
}

std::optional<int64_t> StepOf(const nlohmann::json& line) {
  if (!line.is_object()) return std::nullopt;
  const nlohmann::json step = line.value("step", nlohmann::json());
  return step.is_number_integer() ? std::optional(step.get<int64_t>()) : std::nullopt;
}

// The lines of a JSON lines file whose "step" is at most `step`; a line cut short by a crash goes.
std::string LinesUpTo(const std::string& contents, int64_t step, double* last_time_s) {
  std::istringstream lines(contents);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::optional<int64_t> of_step = StepOf(parsed);
    if (!of_step.has_value() || *of_step > step) continue;
    if (parsed.contains("time_s") && parsed["time_s"].is_number()) {
      *last_time_s = std::max(*last_time_s, parsed["time_s"].get<double>());
    }
    kept += line + "\n";
  }
  return kept;
}

// Removes what is named `prefix` and a number over `last`.
void RemoveAfter(const std::string& directory, std::string_view prefix, int64_t last) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string stem = entry.path().stem().string();
    int64_t number = 0;
    if (stem.starts_with(prefix)) {
      std::from_chars(stem.data() + prefix.size(), stem.data() + stem.size(), number);
    }
    if (number > last) fs::remove_all(entry.path(), error);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Open(const std::string& out,
                                                                 const std::string& name,
                                                                 RunMode mode) {
  std::unique_ptr<RunDirectory> run(new RunDirectory(absl::StrCat(out, "/", name)));
  std::error_code error;
  // A process that died before its first event leaves folders and files without contents.
  const bool bare_is_empty = mode == RunMode::kResumeOrFresh;
  mode = Decide(out, name, mode);
  if (fs::exists(run->path_)) TANDEM_RETURN_IF_ERROR(run->Lock());
  bool empty = true;
  for (const auto& entry : fs::directory_iterator(run->path_, error)) {
    const bool is_bare = bare_is_empty && fs::is_empty(entry.path(), error) && !error;
    if (!IsOfTheLauncher(entry.path()) && !is_bare) empty = false;
  }
  if (mode == RunMode::kResume && !LooksLikeARun(run->path_)) {
    return NotFound(run->path_, ": no run to resume is there");
  }
  if (mode == RunMode::kFresh && !empty) {
    return AlreadyExists(run->path_,
                         " is not empty: use --resume to go on with it, --clean to delete it, or "
                         "another run.name");
  }
  if (mode == RunMode::kClean && !empty) {
    if (!LooksLikeARun(run->path_)) {
      return InvalidArgument(
          run->path_, " does not look like a run (no events.jsonl): --clean will not delete it");
    }
    for (const auto& entry : fs::directory_iterator(run->path_, error)) {
      if (!IsOfTheLauncher(entry.path())) fs::remove_all(entry.path(), error);
    }
  }
  for (const char* folder : {"", "/logs", "/rollouts", "/checkpoints"}) {
    TANDEM_RETURN_IF_ERROR(WithExitCode(MakeDirectories(run->path_ + folder), ExitCode::kStorage));
  }
  if (run->lock_ == nullptr) TANDEM_RETURN_IF_ERROR(run->Lock());
  run->started_at_ = MonotonicSeconds();
  TANDEM_RETURN_IF_ERROR(run->OpenFiles());
  return run;
}

RunMode RunDirectory::Decide(const std::string& out, const std::string& name, RunMode mode) {
  if (mode != RunMode::kResumeOrFresh) return mode;
  return LooksLikeARun(absl::StrCat(out, "/", name)) ? RunMode::kResume : RunMode::kFresh;
}

// What may be had later: on a network file system a machine that is gone holds a lock for a while.
absl::Status RunDirectory::Lock() {
  auto lock = DirectoryLock::Take(path_, kLockPatienceSeconds);
  if (!lock.ok()) {
    return WithExitCode(
        absl::Status(lock.status().code(),
                     absl::StrCat(lock.status().message(),
                                  ": stop it first, or give this run another run.name")),
        ExitCode::kStorage);
  }
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status RunDirectory::OpenFiles() {
  TANDEM_ASSIGN_OR_RETURN(metrics_, AppendFile::Open(path_ + "/metrics.jsonl"));
  TANDEM_ASSIGN_OR_RETURN(events_, AppendFile::Open(path_ + "/events.jsonl"));
  TANDEM_ASSIGN_OR_RETURN(tensorboard_,
                          TensorboardWriter::Create(path_ + "/tensorboard", UnixSeconds()));
  return absl::OkStatus();
}

absl::Status RunDirectory::CutAfter(int64_t step) {
  double last_time_s = 0;
  std::vector<std::string> files = {"/metrics.jsonl", "/events.jsonl"};
  if (fs::exists(path_ + "/probe/pushes.jsonl")) files.push_back("/probe/pushes.jsonl");
  for (const std::string& file : files) {
    TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path_ + file));
    TANDEM_RETURN_IF_ERROR(
        WriteFileAtomically(path_ + file, LinesUpTo(contents, step, &last_time_s)));
  }
  RemoveAfter(path_ + "/rollouts", "step_", step);
  RemoveAfter(path_ + "/captures", "step_", step);
  RemoveAfter(path_ + "/captures/weights", "v_", step);
  started_at_ = MonotonicSeconds() - last_time_s;
  return OpenFiles();
}

absl::StatusOr<RunDirectory::Records> RunDirectory::ReadRecords() const {
  Records records;
  TANDEM_ASSIGN_OR_RETURN(const std::string metrics, ReadFile(path_ + "/metrics.jsonl"));
  for (const nlohmann::json& line : ParsedLines(metrics)) {
    records.last_step = std::max(records.last_step, StepOf(line).value_or(0));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string events, ReadFile(path_ + "/events.jsonl"));
  for (const nlohmann::json& line : ParsedLines(events)) {
    if (line.value("kind", nlohmann::json()) == "checkpoint_saved") records.saved_checkpoint = true;
  }
  return records;
}

absl::Status RunDirectory::WriteText(const std::string& name, const std::string& text) {
  return WriteFileAtomically(absl::StrCat(path_, "/", name), text);
}

absl::Status RunDirectory::WriteMetrics(const MetricsLine& line) {
  TANDEM_RETURN_IF_ERROR(metrics_->Append(line.ToJson() + "\n"));
  return tensorboard_->Write(line.step(), UnixSeconds(), line.scalars());
}

absl::Status RunDirectory::WriteEvent(int64_t step, const std::string& kind,
                                      const std::string& message, const JsonFields& fields) {
  std::string line = absl::StrCat("{\"time_s\":", JsonNumber(ElapsedSeconds()), ",\"step\":", step,
                                  ",\"kind\":", JsonText(kind), ",\"message\":", JsonText(message));
  for (const auto& [name, json] : fields) absl::StrAppend(&line, ",\"", name, "\":", json);
  return events_->Append(line + "}\n");
}

absl::Status RunDirectory::WriteRollouts(int64_t step, const StepExperience& experience,
                                         const PerToken& proximal_logprobs,
                                         const TokenText& token_text) {
  std::string lines;
  const auto write = [&](const ScoredGroup& group, const std::string& drop_reason) {
    int next = 0;
    const auto completion = [&](const ScoredCompletion& member) {
      return CompletionJson(member, FindTokens(proximal_logprobs, group.group_id(), next++),
                            token_text);
    };
    absl::StrAppend(
        &lines, "{\"group_id\":", group.group_id(), ",\"prompt_index\":", group.prompt().index(),
        ",\"prompt\":", JsonText(group.prompt().text()),
        ",\"answer\":", JsonText(group.prompt().answer()), ",\"server\":", JsonText(group.server()),
        ",\"zero_variance\":", group.zero_variance() ? "true" : "false",
        ",\"drop_reason\":", JsonText(drop_reason),
        ",\"completions\":", JsonList(group.completions(), completion), "}\n");
  };
  for (const ScoredGroup& group : experience.groups) write(group, "");
  for (const DroppedGroup& dropped : experience.dropped) {
    if (dropped.group.has_value()) write(*dropped.group, dropped.reason);
  }
  return WriteFileAtomically(absl::StrCat(path_, "/rollouts/step_", step, ".jsonl"), lines);
}

double RunDirectory::ElapsedSeconds() const { return MonotonicSeconds() - started_at_; }

}  // namespace tandem::trainer
