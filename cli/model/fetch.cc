// tandem fetch: gets a model or a data set from the Hugging Face Hub into the cache that
// transformers, vLLM and `hf download` use too, so that every command takes it by its name.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/hub/snapshot_fetch.h"
#include "common/model/model_config.h"
#include "common/options/command_line.h"
#include "common/process/stop_signal.h"
#include "trainer/critic/scored_model.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;

constexpr double kPlainLineSeconds = 10;  // between lines about one file, without a terminal
constexpr double kRedrawSeconds = 0.1;
constexpr int kBarWidth = 16;

struct FetchFlags {
  std::string name;
  bool dataset = false;
  bool any_architecture = false;
  hub::FileChoice choice;
  JsonFlags json;
};

std::string ByteCount(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 0) return "of unknown size";
  if (value < 1e3) return absl::StrCat(bytes, " bytes");
  if (value < 1e6) return absl::StrFormat("%.1f kB", value / 1e3);
  return value < 1e9 ? absl::StrFormat("%.1f MB", value / 1e6)
                     : absl::StrFormat("%.2f GB", value / 1e9);
}

// What is shown while files arrive: one line that is redrawn on a terminal, else a line for each
// file and one every ten seconds of a long one.
class FetchView {
 public:
  void Print(const std::string& text) { live_.Print(PrintableLines(text)); }

  void StartFile(const std::string& path) {
    path_ = Printable(path);
    started_ = drawn_ = MonotonicSeconds();
    begin_bytes_ = -1;
    bytes_ = 0;
  }

  void Progress(int64_t bytes, int64_t size) {
    if (begin_bytes_ < 0) begin_bytes_ = bytes;
    bytes_ = bytes;
    const double now = MonotonicSeconds();
    if (now - drawn_ < (live_.is_terminal() ? kRedrawSeconds : kPlainLineSeconds)) return;
    drawn_ = now;
    const std::string text = Line(now, size);
    live_.is_terminal() ? live_.Update(text) : live_.Print(text);
  }

  void EndFile() {
    const double seconds = MonotonicSeconds() - started_;
    live_.Print(absl::StrFormat("%s: %s in %s", path_, ByteCount(bytes_), ShortDuration(seconds)));
  }

 private:
  std::string Line(double now, int64_t size) const {
    const double rate = static_cast<double>(bytes_ - begin_bytes_) / std::max(1e-3, now - started_);
    std::string text = path_;
    if (size > 0) {
      const auto filled = static_cast<size_t>(bytes_ * kBarWidth / size);
      text = absl::StrCat("[", std::string(filled, '#'), std::string(kBarWidth - filled, '.'), "] ",
                          ByteCount(bytes_), " of ", ByteCount(size), "  ", path_);
    } else {
      absl::StrAppend(&text, "  ", ByteCount(bytes_));
    }
    absl::StrAppend(&text, "  ", ByteCount(static_cast<int64_t>(rate)), "/s");
    if (size > 0 && rate > 0) {
      absl::StrAppend(&text, "  ", ShortDuration(static_cast<double>(size - bytes_) / rate),
                      " left");
    }
    return text;
  }

  LiveLine live_;
  std::string path_;
  double started_ = 0, drawn_ = 0;
  int64_t begin_bytes_ = -1, bytes_ = 0;
};

// What Tandem makes of the model whose config.json is in `directory`.
struct Architecture {
  std::string text;     // "qwen2, 494.0 million parameters"
  std::string type;     // model_type; empty where it is not supported
  std::string refused;  // why Tandem cannot run it; empty: it can
};

Architecture ArchitectureOf(const std::string& directory) {
  auto config = ReadModelConfig(directory);
  const char* role = "";
  if (!config.ok()) {
    auto trunk = trainer::ReadTrunkConfig(directory);  // of a reward model
    if (!trunk.ok()) return {.refused = std::string(config.status().message())};
    config = std::move(trunk);
    role = ", a reward model";
  }
  double parameters = 0;
  for (const TensorSpec& spec : ModelTensors(*config, DType::kBF16)) {
    double elements = 1;
    for (const int64_t size : spec.shape) elements *= static_cast<double>(size);
    parameters += elements;
  }
  return {.text = absl::StrFormat("%s, %.1f million parameters%s", config->model_type,
                                  parameters / 1e6, role),
          .type = config->model_type};
}

// One `tandem fetch`.
class Fetching {
 public:
  explicit Fetching(const FetchFlags& flags)
      : flags_(flags),
        client_(
            hub::ReadHubSettings(),
            [this](double seconds) {
              return stop_.WaitFor(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
            },
            [this](const std::string& text) { view_.Print(text); }) {}

  absl::Status Run() {
    const auto type = flags_.dataset ? hub::RepoType::kDataset : hub::RepoType::kModel;
    auto name = hub::ParseRepoName(flags_.name, type);
    if (!name.ok()) return trainer::WithExitCode(name.status(), ExitCode::kUsage);
    TANDEM_ASSIGN_OR_RETURN(fetch_, hub::SnapshotFetch::Open(&client_, *name, flags_.choice));
    view_.Print(absl::StrCat(name->TypeWord(), " ", name->id, " at ", name->revision, ": commit ",
                             fetch_->snapshot().commit, ", ", fetch_->files().size(), " of ",
                             fetch_->num_files_in_repo(), " files, ",
                             ByteCount(fetch_->MissingBytes()), " to fetch"));
    if (!fetch_->pickles().empty()) {
      view_.Print(absl::StrCat("not fetched, since Tandem never reads pickle: ",
                               absl::StrJoin(fetch_->pickles(), ", ")));
    }
    TANDEM_RETURN_IF_ERROR(CheckArchitecture());
    TANDEM_RETURN_IF_ERROR(fetch_->CheckRoom());
    for (const hub::RepoFile& file : fetch_->files()) TANDEM_RETURN_IF_ERROR(FetchFile(file));
    TANDEM_RETURN_IF_ERROR(fetch_->Finish());
    return PrintResult(flags_.json, fetch_->snapshot().directory + "\n", ResultJson().dump());
  }

 private:
  // Before the large files, so that nobody waits for a model that cannot be used.
  absl::Status CheckArchitecture() {
    const auto config = std::ranges::find(fetch_->files(), "config.json", &hub::RepoFile::path);
    if (flags_.dataset || config == fetch_->files().end()) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(FetchFile(*config));
    architecture_ = ArchitectureOf(fetch_->snapshot().directory);
    if (architecture_.refused.empty()) {
      view_.Print(absl::StrCat("architecture: ", architecture_.text, ": supported"));
      return absl::OkStatus();
    }
    const std::string why = absl::StrCat("Tandem cannot run it: ", architecture_.refused);
    if (flags_.any_architecture) {
      view_.Print(why);
      return absl::OkStatus();
    }
    return trainer::WithExitCode(
        Unimplemented(flags_.name, ": ", why,
                      "; nothing else was fetched; --any-architecture fetches it all the same, for "
                      "another program"),
        ExitCode::kBadModelOrData);
  }

  absl::Status FetchFile(const hub::RepoFile& file) {
    if (fetch_->IsFetched(file)) return absl::OkStatus();
    view_.StartFile(file.path);
    const auto fetched = fetch_->Fetch(
        file,
        [this](double seconds) {
          return stop_.WaitFor(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
        },
        [this](int64_t bytes, int64_t size) { view_.Progress(bytes, size); },
        [&] { view_.Print(absl::StrCat(file.path, ": another process fetches it; waiting")); });
    if (absl::IsCancelled(fetched.status())) {
      return trainer::WithExitCode(
          Cancelled("interrupted; the same command goes on with what is there"),
          ExitCodeOfSignal(stop_.signal()));
    }
    TANDEM_RETURN_IF_ERROR(fetched.status());
    if (!*fetched) return absl::OkStatus();
    view_.EndFile();
    fetched_.push_back(file.path);
    return absl::OkStatus();
  }

  ordered_json ResultJson() const {
    const hub::Snapshot& snapshot = fetch_->snapshot();
    ordered_json files = ordered_json::array();
    for (const hub::RepoFile& file : fetch_->files()) {
      std::error_code ignored;
      files.push_back({{"path", file.path},
                       {"bytes", std::filesystem::file_size(fetch_->PathOf(file), ignored)},
                       {"fetched", std::ranges::find(fetched_, file.path) != fetched_.end()}});
    }
    ordered_json result = {{"schema", 1},
                           {"type", flags_.dataset ? "dataset" : "model"},
                           {"name", snapshot.name.id},
                           {"revision", snapshot.name.revision},
                           {"commit", snapshot.commit},
                           {"directory", snapshot.directory},
                           {"files", std::move(files)},
                           {"not_fetched_pickle", fetch_->pickles()}};
    if (!architecture_.text.empty()) result["architecture"] = architecture_.type;
    if (!architecture_.refused.empty()) result["not_supported"] = architecture_.refused;
    return result;
  }

  const FetchFlags& flags_;
  const StopSignal stop_;
  FetchView view_;
  hub::HubClient client_;
  std::unique_ptr<hub::SnapshotFetch> fetch_;
  Architecture architecture_;
  std::vector<std::string> fetched_;
};

}  // namespace

void AddFetchCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<FetchFlags>();
  CLI::App* sub = app.add_subcommand(
      "fetch", "A model or a data set of the Hugging Face Hub, into this machine's cache");
  sub->add_option("NAME", flags->name,
                  "ORG/NAME or ORG/NAME@REVISION: a branch, a tag or a commit; default: main")
      ->required();
  sub->add_flag("--dataset", flags->dataset, "it is a data set");
  sub->add_option("--include", flags->choice.include,
                  "glob of files to fetch, in place of those that Tandem reads; may be repeated")
      ->expected(1)
      ->take_all();
  sub->add_option("--exclude", flags->choice.exclude, "glob of files to leave out; may be repeated")
      ->expected(1)
      ->take_all();
  sub->add_flag("--any-architecture", flags->any_architecture,
                "also a model that Tandem cannot run");
  AddJsonFlags(sub, &flags->json);
  EndHelp(*sub,
          "The last line, on standard output, is the directory of the snapshot. HF_HOME, "
          "HF_HUB_CACHE,\nHF_ENDPOINT and HF_TOKEN mean what they mean to `hf download`, and both "
          "share the cache. Ctrl-C\nkeeps what came; the same command goes on with it.",
          "tandem fetch Qwen/Qwen2.5-0.5B-Instruct");
  SetAction(*sub, chosen, [flags] { return Finish(Fetching(*flags).Run()); });
}

}  // namespace tandem::cli
