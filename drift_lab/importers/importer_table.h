// The table of what `tandem drift import` reads, and by which fields each is recognised. Used by
// importer.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "drift_lab/importers/import_context.h"
#include "drift_lab/records/records.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

struct Importer {
  const char* name;
  const char* help;      // one line: the files that it reads
  const char* expected;  // for messages: the fields by which an item is recognised
  // True for an item with those fields.
  bool (*looks_like)(const nlohmann::json& item);
  // Null where the framework's files have no token ids or are pickled.
  void (*describe)(RecordsHeader& header);
  absl::Status (*add)(const nlohmann::json& item, ImportContext& context);
  // What to run instead, or for the pickled files that the framework writes beside those it is
  // imported from. "" where there is nothing.
  const char* instead;
};

// In the order of the help. The last is `jsonl`, whose functions are null: mapped_rows.h.
std::span<const Importer> Importers();

// Null if there is none.
const Importer* FindImporter(std::string_view name);

// The importer whose item this looks like; null if none's.
const Importer* LooksLike(const nlohmann::json& item);

}  // namespace tandem::drift
