#include "trainer/run/run_owner.h"

#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/rpc/caller_secret.h"

namespace tandem::trainer {
namespace {

std::string NewRunId(const std::string& name) {
  std::random_device device;
  return absl::StrCat(name, "-",
                      absl::Hex((uint64_t{device()} << 32) | device(), absl::kZeroPad16));
}

// Two lines: the id and the secret.
absl::StatusOr<RunOwner> ReadRunOwner(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.size() != 2 || lines[1].size() < rpc::kMinCallerSecretBytes ||
      lines[1].size() > rpc::kMaxCallerSecretBytes) {
    return DataLoss(path, ": want two lines, the id of the run and its secret");
  }
  return RunOwner{lines[0], lines[1]};
}

}  // namespace

absl::StatusOr<RunOwner> OpenRunOwner(const std::string& path, const std::string& run_name,
                                      bool resumed) {
  if (resumed) {
    absl::StatusOr<RunOwner> kept = ReadRunOwner(path);
    if (kept.ok()) return kept;
    log::Warning(
        "the run's secret is lost: servers come back when the lease of the trainer before has "
        "ended",
        {{"reason", std::string(kept.status().message())}});
  }
  const RunOwner owner = {NewRunId(run_name), rpc::NewSecret()};
  TANDEM_RETURN_IF_ERROR(
      WritePrivateFile(path, absl::StrCat(owner.run_id, "\n", owner.secret, "\n")));
  return owner;
}

}  // namespace tandem::trainer
