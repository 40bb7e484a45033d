#include "cli/report/attribution_html.h"

#include <string_view>
#include <utility>

#include "cli/report/html_page.h"

namespace tandem::report {
namespace {

constexpr std::string_view kScripts[] = {"dom.js",
                                         "charts.js",
                                         "intervals.js",
                                         "tokens.js",
                                         "attribution.js",
                                         "attribution_parts.js",
                                         "theme.js",
                                         "attribution_map.js",
                                         "attribution_positions.js",
                                         "attribution_main.js"};

}  // namespace

std::string AttributionHtml(const std::string& name, std::string data) {
  return RenderHtml(
      {.title = name + " - Tandem attribution", .data = std::move(data), .scripts = kScripts});
}

}  // namespace tandem::report
