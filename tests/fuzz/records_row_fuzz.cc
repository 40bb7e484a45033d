// Any text as a row of a records file: refused with a message that says what was expected, or a row
// whose columns have one element for each token.
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "drift_lab/records/json_rows.h"
#include "drift_lab/records/records_builder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::drift::RecordRow row;
  const absl::Status parsed =
      tandem::drift::ParseRow(std::string_view(reinterpret_cast<const char*>(data), size), row);
  if (!parsed.ok()) {
    TANDEM_CHECK(absl::StrContains(parsed.message(), "expected"));
    return 0;
  }
  tandem::drift::RecordsBuilder builder("x", {});
  const absl::Status added = builder.AddRow(row);
  if (!added.ok()) {
    TANDEM_CHECK(absl::StrContains(added.message(), "expected"));
    return 0;
  }
  const tandem::drift::Records records = builder.Finish();
  TANDEM_CHECK(records.num_rows() == 1);
  TANDEM_CHECK(records.drawn.size() == records.token_ids.size());
  for (const auto& column : records.columns) {
    TANDEM_CHECK(column.empty() || column.size() == records.token_ids.size());
  }
  return 0;
}
