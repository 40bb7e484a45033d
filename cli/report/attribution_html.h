// The HTML page of an attribution: one file that opens without a network. `tandem drift attribute
// --html` calls it.
#ifndef TANDEM_CLI_REPORT_ATTRIBUTION_HTML_H_
#define TANDEM_CLI_REPORT_ATTRIBUTION_HTML_H_

#include <string>

namespace tandem::report {

// `data`: of drift_lab/pages/attribution_page.h. `name` stands in the title of the page.
std::string AttributionHtml(const std::string& name, std::string data);

}  // namespace tandem::report

#endif  // TANDEM_CLI_REPORT_ATTRIBUTION_HTML_H_
