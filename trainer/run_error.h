// Errors of a run that know their exit code: the same status code can mean a bad model or a server
// that belongs to another run, and only the place that met the error can tell.
#ifndef TANDEM_TRAINER_RUN_ERROR_H_
#define TANDEM_TRAINER_RUN_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "common/base/exit_codes.h"

namespace tandem::trainer {

inline constexpr char kExitCodePayload[] = "tandem/exit_code";

// The same error; OK stays OK. A code that is there already stays.
inline absl::Status WithExitCode(absl::Status status, ExitCode code) {
  if (!status.ok() && !status.GetPayload(kExitCodePayload).has_value()) {
    status.SetPayload(kExitCodePayload, absl::Cord(std::to_string(ToInt(code))));
  }
  return status;
}

inline ExitCode ExitCodeOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kExitCodePayload);
  if (!payload.has_value()) return ExitCodeFor(status);
  return static_cast<ExitCode>(std::stoi(std::string(*payload)));
}

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_RUN_ERROR_H_
