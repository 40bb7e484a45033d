// The HTML page of an attribution: one file that opens without a network. `tandem drift attribute
// --html` calls it.
#pragma once

#include <string>

namespace tandem::report {

// `data`: of drift_lab/pages/attribution_report.h. `name` stands in the title of the page.
std::string AttributionHtml(const std::string& name, std::string data);

}  // namespace tandem::report
