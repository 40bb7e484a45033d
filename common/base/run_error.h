// Errors that carry the exit code of the run. The same status code can mean a bad model or a server
// that belongs to another run, and only the code that met the error can tell which.
#ifndef TANDEM_COMMON_BASE_RUN_ERROR_H_
#define TANDEM_COMMON_BASE_RUN_ERROR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"
#include "common/base/weight_version.h"

namespace tandem::trainer {

inline constexpr char kExitCodePayload[] = "tandem/exit_code";

// Returns `status` with `code` attached. OK stays OK, and a code that is already attached is kept.
inline absl::Status WithExitCode(absl::Status status, ExitCode code) {
  if (!status.ok() && !status.GetPayload(kExitCodePayload).has_value()) {
    status.SetPayload(kExitCodePayload, absl::Cord(std::to_string(ToInt(code))));
  }
  return status;
}

// The error of a run whose last weights could not be saved because the disk is full.
inline absl::Status NotSaved(WeightVersion version, int64_t saved_step, const absl::Status& why) {
  return WithExitCode(
      absl::ResourceExhaustedError(absl::StrCat(
          "the weights of step ", version.value, " could not be saved: ", why.message(),
          saved_step == 0 ? "; no checkpoint was saved before"
                          : absl::StrCat("; the checkpoint of step ", saved_step, " stands"),
          ": make room, then --resume")),
      ExitCode::kStorage);
}

inline ExitCode ExitCodeOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kExitCodePayload);
  if (!payload.has_value()) return ExitCodeFor(status);
  return static_cast<ExitCode>(std::stoi(std::string(*payload)));
}

}  // namespace tandem::trainer

#endif  // TANDEM_COMMON_BASE_RUN_ERROR_H_
