#include "common/rpc/refusal.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/cord.h"

namespace tandem::rpc {
namespace {

constexpr std::array<std::pair<Refusal, std::string_view>, 5> kNames = {{
    {Refusal::kQueueFull, "QUEUE_FULL"},
    {Refusal::kDeadlineBeforeStart, "DEADLINE_BEFORE_START"},
    {Refusal::kMemoryFull, "MEMORY_FULL"},
    {Refusal::kTooLarge, "TOO_LARGE"},
    {Refusal::kDeadlineTooFar, "DEADLINE_TOO_FAR"},
}};

}  // namespace

std::string_view RefusalName(Refusal refusal) {
  for (const auto& [one, name] : kNames) {
    if (one == refusal) return name;
  }
  return "";
}

Refusal RefusalNamed(std::string_view name) {
  for (const auto& [refusal, one] : kNames) {
    if (one == name) return refusal;
  }
  return Refusal::kNone;
}

bool IsBusy(Refusal refusal) {
  return refusal == Refusal::kQueueFull || refusal == Refusal::kDeadlineBeforeStart ||
         refusal == Refusal::kMemoryFull;
}

absl::Status Refused(Refusal refusal, absl::Status error) {
  if (refusal == Refusal::kNone) return error;
  error.SetPayload(kRefusalKey, absl::Cord(std::string(RefusalName(refusal))));
  return error;
}

Refusal RefusalOf(const absl::Status& status) {
  const auto name = status.GetPayload(kRefusalKey);
  return name ? RefusalNamed(std::string(*name)) : Refusal::kNone;
}

}  // namespace tandem::rpc
