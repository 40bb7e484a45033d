// The layout of a data set's repository on the Hugging Face Hub: which of its files belong to which
// split, as the library `datasets` finds them. Pure: names in, names out.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

// The files of each split, sorted, in the order in which splits are found.
using SplitFiles = std::vector<std::pair<std::string, std::vector<std::string>>>;

struct HubSubset {
  std::string name;
  bool is_default = false;
  SplitFiles splits;
};

// The subsets that `readme` (the text of README.md) states as "configs" in its front matter, with
// those of `files` (paths relative to the repository) that each names; empty if it states none. A
// pattern has * within a folder, and ** over folders.
//   INVALID_ARGUMENT  the front matter is not YAML, or "configs" has another form
absl::StatusOr<std::vector<HubSubset>> StatedSubsets(std::string_view readme,
                                                     const std::vector<std::string>& files);

// The splits that names say, by the first of these rules that finds any:
//   data/SPLIT-00000-of-00002.parquet     any word as SPLIT
//   a folder, then a file name, with a word of train, validation or test in it
//   all files are "train"
// Words: train, training; validation, valid, dev, val; test, testing, eval, evaluation. They stand
// alone or between - . _ spaces and digits.
SplitFiles SplitsOfNames(const std::vector<std::string>& files);

}  // namespace tandem
