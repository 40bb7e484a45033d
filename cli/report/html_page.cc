#include "cli/report/html_page.h"

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace tandem::report {
namespace {

// Escapes JSON for a <script> element, so that no character can end the element or begin markup.
// These characters occur only inside strings of JSON.
std::string ScriptSafe(const std::string& json) {
  return absl::StrReplaceAll(json, {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}});
}

std::string EscapeHtml(std::string_view text) {
  return absl::StrReplaceAll(
      std::string(text),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

// The page's own scripts carry this nonce, and its Content-Security-Policy lets nothing else run.
// It is a digest (FNV-1a) of the data, so that text inside the data cannot contain it.
std::string Nonce(std::string_view data) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : data) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return absl::StrFormat("%016x", hash);
}

// Replaces each "@NAME@" of the template from left to right. Inserted text is not searched.
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

}  // namespace

std::string RenderHtml(const HtmlPage& page) {
  const std::string json = ScriptSafe(page.data);
  std::string scripts;
  for (const std::string_view name : page.scripts) {
    absl::StrAppend(&scripts, std::string(FindPageFile(name)), "\n");
  }
  return FillTemplate(FindPageFile("page.html"),
                      {{"@TITLE@", EscapeHtml(page.title)},
                       {"@NONCE@", Nonce(json)},
                       {"@CONNECT@", page.fetches ? "; connect-src 'self'" : ""},
                       {"@STYLE@", FindPageFile("style.css")},
                       {"@CHART_JS@", FindPageFile("chart.min.js")},
                       {"@DATA@", json},
                       {"@SCRIPTS@", scripts}});
}

}  // namespace tandem::report
