// Reads a row of a records file (docs/records.md, "Rows") from its JSON text. Used by the reader of
// records files, for both forms: rows of Parquet come as JSON too. Checks names and types of fields;
// what fields must have in common is checked by RecordsBuilder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "drift_lab/records/records_builder.h"

namespace tandem::drift {

// Fills `row`, whose former content is discarded and whose memory is used again. null in place of a
// field is the same as no field. `row` holds what was read so far after an error, so that a message
// can name the row.
//   INVALID_ARGUMENT  not JSON, not an object, a field that docs/records.md does not have, a field
//                     twice, a wrong type, a list without elements where one needs T. The message is
//                     "FIELD: expected ..., found ... at byte N"
absl::Status ParseRow(std::string_view json, RecordRow& row);

// The names of all fields of a row, in the order of the page.
const std::vector<std::string>& RowFieldNames();

// "; did you mean behaviour_logprobs?" for a misspelt name, or for the name of a framework for the same
// quantity; empty if none is near.
std::string FieldSuggestion(std::string_view name, const std::vector<std::string>& names);

// "; it belongs into ..." for a name that no single one of `names` is for, because both sides have a
// field for it or another part of the file does. Empty where that is not known.
const char* RightPlace(std::string_view name, const std::vector<std::string>& names);

}  // namespace tandem::drift
