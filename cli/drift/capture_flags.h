// Flags, checks and exit codes of the lab's subcommands that read a capture.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::cli {

// For the end of the help of commands that print findings instead of numbers.
inline constexpr char kFindingsHelp[] =
    "Findings that make the capture incomparable are printed instead of numbers; the exit code is\n"
    "then 3, as for a capture that cannot be read.";

void AddCaptureArgument(CLI::App* sub, std::string* capture);

// --model and --weights.
void AddModelFlags(CLI::App* sub, std::string* model, std::string* weights);

// Replaces both, where they are names on the Hub, by directories of this machine.
//   NOT_FOUND  as FindTokenizer
absl::Status FindModelFlags(std::string* model, std::string* weights);

// OK unless `path` is a run directory. Whether it is a capture is checked by the code that reads
// it.
//   INVALID_ARGUMENT with exit code 2  a run directory (the message lists its captures by step, one
//                                      per line, or says how a run gets captures)
absl::Status CheckIsOneCapture(const std::string& path);

// The exit code of a command: that in `code`, or that of its error, which is printed. DATA_LOSS, a
// damaged file, is bad data here and not a failed delivery.
int ExitAfterCapture(const absl::StatusOr<int>& code);

}  // namespace tandem::cli
