// CheckIsOneCapture: for subcommands of the drift lab that read one capture and are given the run
// that holds several.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tandem::cli {

// OK unless `path` is a run directory. Whether a capture is there is its reader's to say.
//   INVALID_ARGUMENT with exit code 2  a run directory: its captures by step, one a line, or how a
//                                      run gets some
absl::Status CheckIsOneCapture(const std::string& path);

}  // namespace tandem::cli
