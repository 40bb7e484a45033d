// HtmlPage: one file that opens without a network: template, style, Chart.js, data and scripts.
// What the report of a run and the page of an attribution have in common. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tandem::report {

struct HtmlPage {
  std::string title;                          // plain text
  std::string data;                           // JSON; dom.js parses it as `pageData`
  std::span<const std::string_view> scripts;  // files of page/, in order
};

// No character of the title or the data can become markup or run as a script.
std::string RenderHtml(const HtmlPage& page);

}  // namespace tandem::report
