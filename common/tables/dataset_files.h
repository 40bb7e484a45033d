// Which files a data set consists of. Used by row_reader.h.
//
//   a file                     JSON lines, unless its name says another format
//   a pattern with * or ?      the files that match, sorted
//   a directory of the library `datasets` (save_to_disk)   the files of state.json; of a
//                              DatasetDict (dataset_dict.json) those of the split
//   any other directory        a repository of the Hub: the data files that the front matter of its
//                              README.md names for a configuration and split, or else those whose
//                              names or folders say the split (hub_layout.h)
//
//   ORG/NAME                   the same, of the cache that `tandem fetch --dataset` fills
//
// "PATH:SPLIT" names the split with the path.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tables/table_file.h"

namespace tandem {

// Which part of a data set is meant. Without a split: the only one, or "train". Without a subset
// (the configuration of a repository of the Hub, such as "main" of GSM8K): the only one, or
// "default".
struct DatasetPart {
  std::string split, subset;
};

struct DatasetFile {
  std::string path;
  TableFormat format = TableFormat::kJsonLines;
};

struct DatasetFiles {
  std::vector<DatasetFile> files;  // in order; at least one, all of one format
  std::string split;               // empty for files, which have none
  std::string subset;

  // "Parquet, 2 files, subset main, split train".
  std::string Describe() const;
};

// Reads directories and their small files of JSON and YAML, and no rows.
//   NOT_FOUND         there is no such path or name, no file matches, or the directory has no data
//                     files
//   INVALID_ARGUMENT  there is no such split or subset, or none is meant and there are several
//                     (they are named); a split of a file; files of several formats; a state.json,
//                     dataset_dict.json or front matter that cannot be read
absl::StatusOr<DatasetFiles> FindDatasetFiles(const std::string& path, const DatasetPart& part);

// What has to be on the disk for a data set: the path without ":SPLIT", or the folder of a pattern.
std::string DatasetPlace(const std::string& path);

}  // namespace tandem
