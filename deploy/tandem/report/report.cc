#include "deploy/tandem/report/report.h"

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "deploy/tandem/report/page_files.h"
#include "deploy/tandem/report/run_data.h"
#include "deploy/tandem/report/run_files.h"

namespace tandem::report {
namespace {

constexpr const char* kScripts[] = {"dom.js",      "charts.js", "run.js",     "drift.js",
                                    "training.js", "tables.js", "samples.js", "main.js"};

// JSON inside a <script> element: no character of it may end the element or begin markup.
std::string ScriptSafeJson(const Json& data) {
  const std::string text =
      data.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return absl::StrReplaceAll(text, {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}});
}

std::string EscapeHtml(std::string_view text) {
  return absl::StrReplaceAll(
      std::string(text),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

// The page's own scripts carry this nonce and nothing else may run (Content-Security-Policy). It is
// a digest (FNV-1a) of the data, so text inside the data cannot contain it.
std::string Nonce(std::string_view data) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : data) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return absl::StrFormat("%016x", hash);
}

// Replaces each "@NAME@" of the template once, from left to right; inserted text is not searched.
std::string FillTemplate(
    std::string_view page,
    std::initializer_list<std::pair<std::string_view, std::string_view>> parts) {
  std::string out;
  while (!page.empty()) {
    size_t best = std::string_view::npos;
    std::pair<std::string_view, std::string_view> next;
    for (const auto& part : parts) {
      const size_t at = page.find(part.first);
      if (at < best) {
        best = at;
        next = part;
      }
    }
    out.append(page.substr(0, best));
    if (best == std::string_view::npos) break;
    out.append(next.second);
    page.remove_prefix(best + next.first.size());
  }
  return out;
}

std::string RunName(const std::string& run_directory, const Json& data) {
  const auto id = data["run"].find("run_id");
  if (id != data["run"].end() && id->is_string()) return id->get<std::string>();
  return std::filesystem::path(run_directory + "/").lexically_normal().parent_path().filename();
}

std::string RenderPage(const std::string& run_directory, const Json& data) {
  const std::string json = ScriptSafeJson(data);
  const std::string nonce = Nonce(json);
  std::string scripts;
  for (const char* name : kScripts) absl::StrAppend(&scripts, FindPageFile(name).data(), "\n");
  return FillTemplate(FindPageFile("page.html"),
                      {{"@TITLE@", EscapeHtml(RunName(run_directory, data))},
                       {"@NONCE@", nonce},
                       {"@STYLE@", FindPageFile("style.css")},
                       {"@CHART_JS@", FindPageFile("chart.min.js")},
                       {"@DATA@", json},
                       {"@SCRIPTS@", scripts}});
}

}  // namespace

absl::Status WriteReport(const std::string& run_directory, const std::string& output_path) {
  std::error_code error;
  if (!std::filesystem::is_directory(run_directory, error)) {
    return absl::NotFoundError(absl::StrCat("run directory not found: ", run_directory));
  }
  Notices notices;
  const RunFiles files(run_directory, &notices);
  if (!files.Exists("run.json") && !files.Exists("metrics.jsonl") &&
      !files.Exists("events.jsonl")) {
    return absl::NotFoundError(absl::StrCat(run_directory,
                                            " is not a run directory: it holds none of run.json, "
                                            "metrics.jsonl, events.jsonl (docs/run_directory.md)"));
  }
  const Json data = BuildRunData(files, DataLimits(), &notices);
  const std::string path = output_path.empty() ? run_directory + "/report.html" : output_path;
  return WriteFileAtomically(path, RenderPage(run_directory, data));
}

}  // namespace tandem::report
