#include "cli/compare/engine_spec.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/run_file/launch_options.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

struct KnownEngine {
  const char* name;
  std::vector<std::string> dtypes;
  std::vector<std::string> parts;  // the others, for messages; options as its adapter allows them
};

const std::vector<KnownEngine>& KnownEngines() {
  static const auto* const kEngines = new std::vector<KnownEngine>{
      {"tandem", {"fp32", "bf16"}, {"exact"}},
      {"transformers", {"fp32", "bf16", "fp16"}, {"eager", "sdpa", "threads=N"}},
      {"vllm",
       {"fp32", "bf16", "fp16"},
       {"max_model_len=N", "enforce_eager=0|1", "gpu_memory_utilization=SHARE", "kv_gib=N"}},
      {"llama_cpp",
       {"f32", "bf16", "f16", "q8_0", "q4_K"},
       {"gguf=FILE", "cache=FOLDER", "n_ctx=N", "threads=N"}},
  };
  return *kEngines;
}

// What stands after the dtype: "eager" of transformers, "exact" of tandem, model=DIR of all, or
// NAME=VALUE of the adapter.
absl::Status TakePart(std::string_view part, const KnownEngine& known, EngineSpec& spec) {
  constexpr std::string_view kModel = "model=";
  if (spec.name == "tandem" && part == "exact") {
    spec.exact = true;
  } else if (part.starts_with(kModel) && part.size() > kModel.size()) {
    spec.model = part.substr(kModel.size());
  } else if (spec.name == "transformers" && (part == "eager" || part == "sdpa")) {
    spec.options.push_back("attn=" + std::string(part));
  } else if (spec.name != "tandem" && part.find('=') != std::string_view::npos) {
    spec.options.emplace_back(part);
  } else {
    return InvalidArgument("engine ", spec.text, ": `", std::string(part),
                           "` is not a dtype of it and no option; after `", spec.name,
                           ":` may stand ", absl::StrJoin(known.dtypes, ", "), ", ",
                           absl::StrJoin(known.parts, ", "), ", model=DIR");
  }
  return absl::OkStatus();
}

bool HasPackage(const fs::path& root) {
  std::error_code ignored;
  return fs::exists(root / "python/tandem_rl/engines/protocol.py", ignored);
}

// The checkout that this program lies in (build/release/bin), else the current directory; else "".
std::string CheckoutRoot() {
  std::error_code ignored;
  for (fs::path folder = ProgramDirectory(); !folder.empty() && folder != folder.root_path();
       folder = folder.parent_path()) {
    if (HasPackage(folder)) return folder.string();
  }
  const fs::path here = fs::current_path(ignored);
  return HasPackage(here) ? here.string() : "";
}

}  // namespace

absl::StatusOr<EngineSpec> ParseEngineSpec(std::string_view text) {
  EngineSpec spec = {.text = std::string(text)};
  for (const char* const server : {"", "vllm+", "sglang+", "llama_cpp+"}) {
    const std::string_view kind = server;
    if (!text.starts_with(kind)) continue;
    const std::string_view url = text.substr(kind.size());
    if (!url.starts_with("http://") && !url.starts_with("https://")) continue;
    spec.name = "openai_http";
    spec.options.push_back("url=" + std::string(url));
    if (!kind.empty()) {
      spec.options.push_back("server=" + std::string(kind.substr(0, kind.size() - 1)));
    }
    return spec;
  }
  const std::vector<std::string> parts = absl::StrSplit(spec.text, ':');
  const auto known = std::ranges::find(KnownEngines(), parts[0], &KnownEngine::name);
  if (known == KnownEngines().end()) {
    return InvalidArgument(
        "there is no engine `", parts[0], "`; there are ",
        absl::StrJoin(KnownEngines(), ", ",
                      [](std::string* out, const KnownEngine& one) { out->append(one.name); }),
        " and http://HOST:PORT");
  }
  spec.name = parts[0];
  for (const std::string& part : std::span(parts).subspan(1)) {
    if (std::ranges::find(known->dtypes, part) != known->dtypes.end() && spec.dtype.empty()) {
      spec.dtype = part;
    } else {
      TANDEM_RETURN_IF_ERROR(TakePart(part, *known, spec));
    }
  }
  return spec;
}

absl::StatusOr<EnginePython> FindEnginePython(const EngineSpec& spec, const std::string& asked) {
  const std::string root = CheckoutRoot();
  EnginePython found = {.package_folder = root.empty() ? "" : root + "/python"};
  std::vector<std::string> places;
  if (!asked.empty()) {
    places = {asked};
  } else if (!root.empty()) {
    places = {root + "/.deps/engines/" + spec.name + "/bin/python"};
    if (spec.name == "transformers" || spec.name == "openai_http") {
      places.push_back(root + "/.deps/venv/bin/python");
    }
  }
  for (const std::string& place : places) {
    std::error_code ignored;
    if (!fs::exists(place, ignored)) continue;
    found.interpreter = place;
    return found;
  }
  return absl::NotFoundError(absl::StrCat(
      "engine ", spec.text, ": ",
      places.empty() ? std::string("no checkout of Tandem is here, so that an interpreter must be "
                                   "named (--python-a, --python-b)")
                     : absl::StrCat("no ", absl::StrJoin(places, " and no "),
                                    "; deploy/setup/install.sh --engines installs it, or name an "
                                    "interpreter (--python-a, --python-b)")));
}

}  // namespace tandem::cli
