// The items of what frameworks write: the lines of JSON lines, the elements of a JSON list, the rows of
// a Parquet table, the rows of tensors in a safetensors file. What is pickled is recognised by its
// first bytes and never opened: unpickling runs whatever program the pickle holds. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

// kOther: none of the others.
enum class SourceKind { kJson, kParquet, kSafetensors, kPickle, kRecords, kEmpty, kOther };

// A file to import; `is_named` is false where it was found in a directory. The step is that of its name or of its directory's ("train_data_step7.jsonl",
// "step_7/rank_0.jsonl", "7.jsonl"), if they have one.
struct SourceFile {
  std::string path;
  std::optional<int64_t> step;
  bool is_named = true;
};

// The files that `paths` name, each of which is a file, a directory (all files in it and below it,
// hidden ones left out) or a pattern with * and ?. In the order of `paths`, and in natural order
// (2 before 10) within one.
//   NOT_FOUND  nothing is there, or nothing matches
absl::StatusOr<std::vector<SourceFile>> SourceFiles(const std::vector<std::string>& paths);

std::optional<int64_t> StepInName(std::string_view path);

//   errors of MappedFile::Open
//   INVALID_ARGUMENT  a compressed file
absl::StatusOr<SourceKind> KindOfFile(const std::string& path);

// Called with each item and its place ("line 3", "line 3 element 2", "row 5").
using TakeItem =
    absl::FunctionRef<absl::Status(const nlohmann::json& item, const std::string& place)>;

// Reads a file of kind JSON, Parquet or safetensors, an item at a time. An error of `take` ends it and
// is returned as "PATH PLACE: MESSAGE".
//   errors of ReadFile, ParquetStream and ReadSafetensors
//   INVALID_ARGUMENT  the place that is not JSON; tensors of different numbers of rows
absl::Status ForEachItem(const std::string& path, SourceKind kind, TakeItem take);

}  // namespace tandem::drift
