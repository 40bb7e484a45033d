// Exit codes of every program of the project (listed for users in docs/), so that a script or a
// cluster's restart policy can tell a typing error from a lost server.
#ifndef TANDEM_COMMON_BASE_EXIT_CODES_H_
#define TANDEM_COMMON_BASE_EXIT_CODES_H_

#include <csignal>

#include "absl/status/status.h"

namespace tandem {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kUsage = 2,              // command line or configuration
  kBadModelOrData = 3,     // a model or data file is missing, damaged or unsupported
  kServerLost = 4,         // a rollout server cannot be reached, beyond patience
  kServerOwned = 5,        // a rollout server belongs to another run
  kDeliveryNotProven = 6,  // pushed weights are not what a server runs, or drift says so
  kStorage = 7,            // disk full, a file cannot be written
  kTooManySkipped = 8,     // train steps without a finite loss, too many in a row
  kChildDied = 9,          // a process the launcher started ended by itself
  kRankLost = 10,          // another rank of the trainer died, hangs or never came
  kInterrupted = 130,      // SIGINT
  kTerminated = 143,       // SIGTERM, or a stop that another process asked for
};

constexpr int ToInt(ExitCode code) { return static_cast<int>(code); }

// Of a process that ended because `signal` asked it to (StopSignal::signal), as a shell counts: 128
// and the signal's number. 0 is a stop without a signal of its own.
constexpr ExitCode ExitCodeOfSignal(int signal) {
  return signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated;
}

// Either of the two above: the process was asked to stop, and did.
constexpr bool IsStop(ExitCode code) {
  return code == ExitCode::kInterrupted || code == ExitCode::kTerminated;
}

// What an error means when nothing more is known about where it came from. Programs that know (an
// error while reading the model is kBadModelOrData whatever its code) choose themselves.
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

#endif  // TANDEM_COMMON_BASE_EXIT_CODES_H_
