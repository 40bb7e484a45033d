// CheckIsOneCapture: for subcommands of the drift lab that read one capture and are given the run
// that holds several.
#ifndef TANDEM_DEPLOY_TANDEM_RUN_CAPTURES_H_
#define TANDEM_DEPLOY_TANDEM_RUN_CAPTURES_H_

#include <string>

#include "absl/status/status.h"

namespace tandem::front {

// OK unless `path` is a run directory. Whether a capture is there is its reader's to say.
//   INVALID_ARGUMENT with exit code 2  a run directory: its captures by step, one a line, or how a
//                                      run gets some
absl::Status CheckIsOneCapture(const std::string& path);

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_RUN_CAPTURES_H_
