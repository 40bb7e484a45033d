#include "trainer/checkpoints/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/lora/peft_files.h"
#include "common/model/safetensors.h"
#include "common/weights/digest.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kWeights[] = "model.safetensors";
constexpr char kOptimizer[] = "optimizer.safetensors";
constexpr char kState[] = "state.json";
constexpr char kManifest[] = "manifest.json";
constexpr int kSchema = 1;

// Files of a model directory that a checkpoint carries along.
constexpr const char* kModelFiles[] = {"config.json",         "generation_config.json",
                                       "tokenizer.json",      "tokenizer_config.json",
                                       "chat_template.jinja", "special_tokens_map.json"};

// The file of the masters.
const char* WeightsFile(bool of_adapters) { return of_adapters ? kPeftTensors : kWeights; }

absl::StatusOr<json> SizeAndDigest(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string digest, DigestFile(path));
  std::error_code ignored;  // it has just been read
  return json{{"bytes", fs::file_size(path, ignored)}, {"xxh3_128", digest}};
}

// [group id, prompt, epoch, completions] of each.
json PlannedJson(const std::map<int64_t, PlannedGroup>& planned) {
  json rows = json::array();
  for (const auto& [id, plan] : planned) {
    rows.push_back({id, plan.prompt, plan.epoch, plan.num_completions});
  }
  return rows;
}

// [prompt, successes, failures, groups] of each.
json CountsJson(const std::vector<PromptCounts>& counts) {
  json rows = json::array();
  for (const PromptCounts& of : counts) {
    rows.push_back({of.prompt, of.successes, of.failures, of.groups});
  }
  return rows;
}

json DropsJson(const std::vector<DroppedGroup>& drops) {
  json rows = json::array();
  for (const DroppedGroup& drop : drops) rows.push_back({drop.group_id, drop.reason});
  return rows;
}

// Whether `rows` is a list of lists of four numbers.
bool HasRowsOfFour(const json& rows) {
  return rows.is_array() && std::ranges::all_of(rows, [](const json& row) {
           return row.is_array() && row.size() == 4 &&
                  std::ranges::all_of(row, [](const json& value) { return value.is_number(); });
         });
}

absl::Status ReadPlans(const json& state, const std::string& path, Checkpoint* checkpoint) {
  const json planned = state.value("planned", json::array());
  const json counts = state.value("prompt_counts", json::array());
  if (!HasRowsOfFour(planned) || !HasRowsOfFour(counts)) {
    return DataLoss(path, "/", kState, ": planned or prompt_counts is not rows of four numbers");
  }
  for (const json& row : planned) {
    checkpoint->planned[row[0]] = {.prompt = row[1], .epoch = row[2], .num_completions = row[3]};
  }
  for (const json& row : counts) {
    checkpoint->prompt_counts.push_back(
        {.prompt = row[0], .successes = row[1], .failures = row[2], .groups = row[3]});
  }
  checkpoint->unrecorded_skips = state.value("unrecorded_skips", int64_t{0});
  for (const json& row : state.value("unrecorded_drops", json::array())) {
    if (!row.is_array() || row.size() != 2 || !row[0].is_number() || !row[1].is_string()) {
      return DataLoss(path, "/", kState, ": unrecorded_drops is not rows of a group and a reason");
    }
    checkpoint->unrecorded_drops.push_back({.group_id = row[0], .reason = row[1]});
  }
  return absl::OkStatus();
}

std::string StateJson(const Checkpoint& checkpoint) {
  const json state = {{"schema", kSchema},
                      {"step", checkpoint.step},
                      {"next_group_step", checkpoint.frontier.step},
                      {"next_group", checkpoint.frontier.group},
                      {"planned", PlannedJson(checkpoint.planned)},
                      {"prompt_counts", CountsJson(checkpoint.prompt_counts)},
                      {"unrecorded_skips", checkpoint.unrecorded_skips},
                      {"unrecorded_drops", DropsJson(checkpoint.unrecorded_drops)},
                      {"run_id", checkpoint.run_id},
                      {"seed", checkpoint.order.seed},
                      {"prompts_per_step", checkpoint.order.prompts_per_step},
                      {"prompts_digest", checkpoint.order.prompts_digest},
                      {"model_config_digest", checkpoint.identity.model_config_digest},
                      {"tokenizer_hash", checkpoint.identity.tokenizer_hash},
                      {"start_digest", checkpoint.identity.start_digest},
                      {"num_updates", checkpoint.learner.num_updates},
                      {"numbers", checkpoint.learner.numbers}};
  return state.dump(1) + "\n";
}

absl::Status WriteFiles(const std::string& path, const Checkpoint& checkpoint,
                        const std::string& model_directory) {
  const LearnerState& learner = checkpoint.learner;
  const std::string weights = WeightsFile(!learner.adapter_config.empty());
  std::vector<std::string> names = {weights, kOptimizer, kState};
  if (!learner.adapter_config.empty()) {
    TANDEM_RETURN_IF_ERROR(WritePeftDirectory(path, learner.adapter_config, learner.weights));
    names.emplace_back(kPeftConfig);
  } else {
    TANDEM_RETURN_IF_ERROR(WriteSafetensors(path + "/" + weights, learner.weights));
  }
  TANDEM_RETURN_IF_ERROR(WriteSafetensors(path + "/" + kOptimizer, checkpoint.learner.optimizer));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path + "/" + kState, StateJson(checkpoint)));
  for (const char* const name : kModelFiles) {
    if (!fs::exists(model_directory + "/" + name)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(model_directory + "/" + name));
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path + "/" + name, contents));
    names.push_back(name);
  }
  json files = json::object();
  for (const std::string& name : names) {
    TANDEM_ASSIGN_OR_RETURN(files[name], SizeAndDigest(path + "/" + name));
  }
  const json manifest = {{"schema", kSchema}, {"step", checkpoint.step}, {"files", files}};
  return WriteFileAtomically(path + "/" + kManifest, manifest.dump(1) + "\n");
}

// Steps of the checkpoints in `directory`, newest first.
std::vector<int64_t> StepsIn(const std::string& directory) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (name.starts_with("step_") && absl::SimpleAtoi(name.substr(5), &step)) steps.push_back(step);
  }
  std::ranges::sort(steps, std::greater());
  return steps;
}

std::string PathOf(const std::string& directory, int64_t step) {
  return absl::StrCat(directory, "/step_", step);
}

// Also what a writer that died left unfinished: nobody else writes here.
void RemoveStale(const std::string& directory, int64_t keep) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".tmp") fs::remove_all(entry.path(), error);
  }
  const std::vector<int64_t> steps = StepsIn(directory);
  for (size_t i = static_cast<size_t>(keep); i < steps.size(); ++i) {
    fs::remove_all(PathOf(directory, steps[i]), error);
  }
}

absl::StatusOr<json> ReadJson(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  json parsed = json::parse(contents, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object() && parsed.value("schema", 0) == kSchema) return parsed;
  return DataLoss(path, " is not JSON of schema ", kSchema);
}

absl::Status VerifyFiles(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const json manifest, ReadJson(path + "/" + kManifest));
  const json files = manifest.value("files", json::object());
  for (const char* const name : {WeightsFile(files.contains(kPeftConfig)), kOptimizer, kState}) {
    if (!files.contains(name)) {
      return DataLoss(path, ": the manifest lacks ", name);
    }
  }
  for (const auto& [name, want] : files.items()) {
    TANDEM_ASSIGN_OR_RETURN(const json got, SizeAndDigest(path + "/" + name));
    if (got != want) {
      return DataLoss(path, "/", name, " is ", got.dump(), ", the manifest says ", want.dump());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIdentity(const std::string& path, const CheckpointIdentity& was,
                           const CheckpointIdentity& now) {
  const auto check = [&](const char* what, const std::string& a, const std::string& b) {
    if (a == b) return absl::OkStatus();
    return FailedPrecondition(path, " was made with another ", what, " (digest ", a, ", now ", b,
                              "): name the model it was made with");
  };
  TANDEM_RETURN_IF_ERROR(
      check("model configuration", was.model_config_digest, now.model_config_digest));
  TANDEM_RETURN_IF_ERROR(check("tokenizer", was.tokenizer_hash, now.tokenizer_hash));
  if (was.start_digest.empty() || now.start_digest.empty()) return absl::OkStatus();
  return check("set of starting weights, which are the reference policy,", was.start_digest,
               now.start_digest);
}

// Keeps only what went wrong: not whether the file system said "not there" or "damaged".
absl::Status AsDataLoss(const absl::Status& status) {
  return status.ok() ? status : DataLoss(status.message());
}

}  // namespace

absl::Status CheckSameOrder(const PromptOrder& was, const PromptOrder& now) {
  const auto differs = [](const char* what, const auto& a, const auto& b) {
    return InvalidArgument(
        "the run was started with ", what, " ", a, ", not ", b,
        ": which prompts come next depends on it. To go on from its weights in another "
        "way, start another run with the checkpoint as trainer.model");
  };
  if (was.seed != now.seed) return differs("trainer.seed", was.seed, now.seed);
  if (was.prompts_per_step != now.prompts_per_step) {
    return differs("trainer.prompts_per_step", was.prompts_per_step, now.prompts_per_step);
  }
  if (was.prompts_digest == now.prompts_digest) return absl::OkStatus();
  return differs("the prompts (trainer.data) of digest", was.prompts_digest, now.prompts_digest);
}

absl::Status SaveCheckpoint(const std::string& directory, const Checkpoint& checkpoint,
                            const std::string& model_directory, int64_t keep) {
  // One of the same step that was there holds the same weights, or was damaged.
  TANDEM_RETURN_IF_ERROR(WriteDirectoryAtomically(
      PathOf(directory, checkpoint.step), [&](const std::string& temporary) {
        return WriteFiles(temporary, checkpoint, model_directory);
      }));
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically(directory + "/LATEST", absl::StrCat("step_", checkpoint.step, "\n")));
  RemoveStale(directory, keep);
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& path,
                                          const CheckpointIdentity& identity) {
  TANDEM_RETURN_IF_ERROR(AsDataLoss(VerifyFiles(path)));
  TANDEM_ASSIGN_OR_RETURN(const json state, ReadJson(path + "/" + kState));
  Checkpoint checkpoint;
  checkpoint.step = state.value("step", int64_t{-1});
  checkpoint.frontier.step = state.value("next_group_step", int64_t{-1});
  checkpoint.run_id = state.value("run_id", "");
  checkpoint.order = {state.value("seed", uint64_t{0}),
                      state.value("prompts_per_step", int64_t{-1}),
                      state.value("prompts_digest", "")};
  checkpoint.identity = {state.value("model_config_digest", ""), state.value("tokenizer_hash", ""),
                         state.value("start_digest", "")};
  checkpoint.learner.num_updates = state.value("num_updates", int64_t{-1});
  checkpoint.learner.numbers = state.value("numbers", std::map<std::string, double>());
  if (checkpoint.step < 0 || checkpoint.frontier.step < 0 || checkpoint.learner.num_updates < 0 ||
      checkpoint.order.prompts_per_step < 0) {
    return DataLoss(path, "/", kState, " lacks a field");
  }
  // Checkpoints from before steps could take other numbers of groups do not have it.
  checkpoint.frontier.group =
      state.value("next_group", checkpoint.frontier.step * checkpoint.order.prompts_per_step);
  TANDEM_RETURN_IF_ERROR(ReadPlans(state, path, &checkpoint));
  TANDEM_RETURN_IF_ERROR(CheckIdentity(path, checkpoint.identity, identity));
  auto weights = ReadSafetensors(path + "/" + WeightsFile(IsPeftDirectory(path)));
  TANDEM_RETURN_IF_ERROR(AsDataLoss(weights.status()));
  auto optimizer = ReadSafetensors(path + "/" + kOptimizer);
  TANDEM_RETURN_IF_ERROR(AsDataLoss(optimizer.status()));
  checkpoint.learner.weights = PresentAll(std::move(weights->tensors));
  checkpoint.learner.optimizer = PresentAll(std::move(optimizer->tensors));
  return checkpoint;
}

absl::StatusOr<LoadedCheckpoint> LoadLatestCheckpoint(const std::string& directory,
                                                      const CheckpointIdentity& identity) {
  TANDEM_RETURN_IF_ERROR(RecoverDirectories(directory));
  const std::vector<int64_t> steps = StepsIn(directory);
  // A step newer than LATEST is whole too if its digests say so: the writer died between the two.
  LoadedCheckpoint loaded;
  for (const int64_t step : steps) {
    auto checkpoint = LoadCheckpoint(PathOf(directory, step), identity);
    if (checkpoint.ok()) {
      loaded.checkpoint = *std::move(checkpoint);
      return loaded;
    }
    if (checkpoint.status().code() != absl::StatusCode::kDataLoss) return checkpoint.status();
    loaded.refused.push_back(std::string(checkpoint.status().message()));
  }
  if (steps.empty()) return NotFound("no checkpoint in ", directory);
  return DataLoss("no checkpoint in ", directory, " is whole (",
                  absl::StrJoin(loaded.refused, "; "),
                  "): bring one back, or move the run away and start anew");
}

}  // namespace tandem::trainer
