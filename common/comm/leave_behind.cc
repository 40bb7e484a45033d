#include "common/comm/leave_behind.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::comm {
namespace {

// Shared by the caller and the thread; the last one to finish frees it.
struct Outcome {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<absl::Status> status;
};

absl::Status Run(const std::function<void()>& work) {
  try {
    work();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return Internal(error.what());
  }
}

}  // namespace

absl::Status RunOrLeaveBehind(const std::string& what, absl::Duration deadline,
                              std::function<void()> work) {
  const auto outcome = std::make_shared<Outcome>();
  std::thread([outcome, work = std::move(work)]() mutable {
    absl::Status status = Run(work);
    work = nullptr;  // destroys what it owns before the caller continues
    const std::lock_guard lock(outcome->mutex);
    outcome->status = std::move(status);
    outcome->changed.notify_all();
  }).detach();
  std::unique_lock lock(outcome->mutex);
  const bool back = outcome->changed.wait_for(lock, absl::ToChronoNanoseconds(deadline),
                                              [&] { return outcome->status.has_value(); });
  if (back) return *outcome->status;
  return DeadlineExceeded(what, " took longer than ", absl::FormatDuration(deadline),
                          ": a member died or hangs in the middle of it");
}

}  // namespace tandem::comm
