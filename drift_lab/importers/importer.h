// Imports what other frameworks and engines write into records (docs/records.md). Used by `tandem drift
// import`; docs/foreign_engines.md says for each framework which file comes out of it and how it is
// switched on.
//
// Nothing is repaired: sentinels, placeholders and padding values are carried as they are, lengths that
// do not agree are refused, and what is left out or not known is said in a note. To add a framework:
// write its Describe and Add functions, and a row of the table in importer_table.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "drift_lab/records/records.h"

namespace tandem::drift {

struct ImportOptions {
  std::string from;                 // a name of ImporterNames
  std::vector<std::string> paths;   // files, directories or patterns
  std::vector<std::string> maps;    // "FIELD=their.field", for `jsonl` only
  std::vector<std::string> claims;  // "behaviour.temperature=0.7"
};

struct ImportedRecords {
  Records records;
  int64_t num_files = 0;
  std::vector<std::string> notes;
};

// Called before each file, with its path and the share of files that are done.
using ImportProgress = std::function<void(const std::string& path, double done)>;

// Checks the options without reading a file.
//   INVALID_ARGUMENT  no such framework (the nearest is named), a --map or --claim that is none
absl::Status CheckImportOptions(const ImportOptions& options);

//   errors of CheckImportOptions, SourceFiles, KindOfFile and ForEachItem
//   INVALID_ARGUMENT  a file of another framework (the message says which it looks like), a pickle or
//                     a file without token ids (the message names the exporter or hook to run), a
//                     field that is missing or of another type or length ("PATH line 3: FIELD:
//                     expected ..., found ..."), no rows
absl::StatusOr<ImportedRecords> ImportRecords(const ImportOptions& options,
                                              const ImportProgress& progress = {});

// In the order of the help.
std::vector<std::string> ImporterNames();
// A line for each: its name, and what it reads.
std::string ImporterHelp();

}  // namespace tandem::drift
