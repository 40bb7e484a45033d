// `tandem drift why RECORDS`: the verdict from a records file of foreign engines (docs/records.md).
// cli/drift/drift_why.cc calls it where the path is such a file.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/io/shared_flags.h"

namespace tandem::cli {

struct WhyRecordsFlags {
  std::string path;     // a records file
  std::string model;    // --model, directory or Hub name; empty: records alone
  std::string weights;  // --weights, which the referee suspects; empty: none
  std::string html;     // --html; empty: no page
  JsonFlags json;
  uint64_t seed = 1;
  double referee_seconds = 75;  // --referee-seconds
};

// --referee-seconds. `on` begins the help: when there is a referee.
void AddRefereeSeconds(CLI::App* sub, double& seconds, const std::string& on);

// What can be said of the flags before the records are there. `tandem drift compare` asks it before the
// engines run.
//   INVALID_ARGUMENT with exit code 2  --weights, and no model that a referee would score with
//   NOT_FOUND                          --weights is no model directory
//   errors of CheckOutputFolder
absl::Status CheckWhyRecords(const WhyRecordsFlags& flags);

// Prints the verdict and returns the exit code 0.
//   errors of CheckWhyRecords, ReadRecords, RunReferee and WriteOutputFile
absl::StatusOr<int> RunWhyRecords(const WhyRecordsFlags& flags);

}  // namespace tandem::cli
