// The exit codes of every program of the project (docs/ lists them for users). They let a script or
// a cluster's restart policy tell a typing error from a lost server.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/weight_version.h"

namespace tandem {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kUsage = 2,              // command line or configuration
  kBadModelOrData = 3,     // a model or data file is missing, damaged or unsupported
  kServerLost = 4,         // a rollout server could not be reached in the time allowed
  kServerOwned = 5,        // a rollout server belongs to another run
  kDeliveryNotProven = 6,  // a server does not run the weights it was pushed
  kStorage = 7,            // disk full, a file cannot be written
  kTooManySkipped = 8,     // train steps without a finite loss, too many in a row
  kChildDied = 9,          // a process the launcher started ended by itself
  kRankLost = 10,          // another rank of the trainer died, hangs or never came
  kInterrupted = 130,      // SIGINT
  kTerminated = 143,       // SIGTERM, or a stop that another process asked for
};

constexpr int ToInt(ExitCode code) { return static_cast<int>(code); }

// The exit code of a process that ended because `signal` asked it to: 128 plus the number of the
// signal, as in a shell. A `signal` of 0 is a stop that another process requested, and counts as
// SIGTERM.
constexpr ExitCode ExitCodeOfSignal(int signal) {
  return signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated;
}

// True for the two codes of a process that was asked to stop and did.
constexpr bool IsStop(ExitCode code) {
  return code == ExitCode::kInterrupted || code == ExitCode::kTerminated;
}

// The exit code for an error about whose origin nothing more is known. A caller that knows the
// origin chooses the code itself: an error while reading the model is kBadModelOrData whatever its
// status code.
inline ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
      return ExitCode::kUsage;
    case absl::StatusCode::kUnimplemented:
      return ExitCode::kBadModelOrData;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kServerLost;
    case absl::StatusCode::kFailedPrecondition:
      return ExitCode::kServerOwned;
    case absl::StatusCode::kDataLoss:
      return ExitCode::kDeliveryNotProven;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kPermissionDenied:
      return ExitCode::kStorage;
    case absl::StatusCode::kCancelled:
      return ExitCode::kInterrupted;
    default:
      return ExitCode::kInternal;
  }
}

}  // namespace tandem

namespace tandem::trainer {

// Errors can carry the exit code of the run. The same status code can mean a bad model or a server
// that belongs to another run, and only the code that met the error can tell which.
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
      ResourceExhausted(
          "the weights of step ", version.value, " could not be saved: ", why.message(),
          saved_step == 0 ? "; no checkpoint was saved before"
                          : absl::StrCat("; the checkpoint of step ", saved_step, " stands"),
          ": make room, then --resume"),
      ExitCode::kStorage);
}

inline ExitCode ExitCodeOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kExitCodePayload);
  if (!payload.has_value()) return ExitCodeFor(status);
  return static_cast<ExitCode>(std::stoi(std::string(*payload)));
}

}  // namespace tandem::trainer
