// HtmlPage: renders template, style, Chart.js, data and scripts as one HTML file. The report of a
// run, the page of an attribution and that of `tandem ui` use it. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tandem::report {

struct HtmlPage {
  std::string title;                          // plain text
  std::string data;                           // JSON; dom.js parses it as `pageData`
  std::span<const std::string_view> scripts;  // files of page/, in order
  bool fetches = false;  // its scripts may ask the server that it came from; else nobody
};

// No part of the title or the data can become markup or run as a script.
std::string RenderHtml(const HtmlPage& page);

// The contents of a file of page/, or of Chart.js, at build time ("style.css", "chart.min.js").
// Empty if there is none. cmake/embed.cmake generates it.
std::string_view FindPageFile(std::string_view name);

}  // namespace tandem::report
