// The importer of anybody's rows (--from jsonl): JSON lines, Parquet or safetensors whose fields have
// names of their own. A map says where each field of docs/records.md comes from; a field without one is
// looked for under its own name. Thread-compatible.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "drift_lab/importers/import_context.h"
#include "drift_lab/records/records.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

class MappedRows {
 public:
  // `maps` are "FIELD=their.field", with dots into objects and lists ("choices.0.ids"). Beside the
  // fields of a row, FIELD is one of
  //   prompt_ids, completion_ids  in place of token_ids, where the two are apart
  //   attention_mask              [T]: elements with 0 are padding, and are left out of every column
  //   INVALID_ARGUMENT  no "=", or no such field (the nearest is named)
  static absl::StatusOr<MappedRows> Create(const std::vector<std::string>& maps);

  // Says which columns come from where.
  void Describe(RecordsHeader& header) const;

  // Per-token columns have an element for each token, or for each token behind the prompt: those are
  // placed there.
  //   INVALID_ARGUMENT  "FIELD (their.field): expected ..., found ..."
  absl::Status Add(const nlohmann::json& item, ImportContext& context) const;

 private:
  explicit MappedRows(std::map<std::string, std::string> fields) : fields_(std::move(fields)) {}

  // Where `field` comes from.
  std::string Source(const std::string& field) const;
  // "token_ids (ids)", for messages.
  std::string Name(const std::string& field) const;
  const nlohmann::json* Find(const nlohmann::json& item, const std::string& field) const;
  std::string Text(const nlohmann::json& item, const std::string& field) const;
  absl::Status ReadTokens(const nlohmann::json& item, RecordRow& row) const;
  absl::Status ReadColumns(const nlohmann::json& item, const std::vector<uint8_t>& kept,
                           RecordRow& row) const;
  absl::Status ReadFacts(const nlohmann::json& item, RecordRow& row) const;

  std::map<std::string, std::string> fields_;
};

}  // namespace tandem::drift
