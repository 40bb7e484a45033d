// The header of a records file (docs/records.md, "Header") as JSON. Used by the reader and the writer
// of records files, and by importers that write one.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "drift_lab/records/records.h"

namespace tandem::drift {

inline constexpr int64_t kRecordsFormat = 3;

// null in place of a field is the same as no field.
//   INVALID_ARGUMENT  not a JSON object, no "tandem_capture", another format than kRecordsFormat, a
//                     field that docs/records.md does not have, a wrong type or value. The message is
//                     "FIELD: expected ..., found ..."
absl::StatusOr<RecordsHeader> ParseHeader(std::string_view json);

// The header as one line of JSON without a line break. ParseHeader gives the same header back.
std::string HeaderJson(const RecordsHeader& header);

}  // namespace tandem::drift
