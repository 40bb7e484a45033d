#include "rollout_server/vllm/control_requests.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::rollout {

absl::StatusOr<PauseHow> PauseHowNamed(const std::string& mode) {
  if (mode == "abort") return PauseHow::kAbort;
  if (mode == "keep") return PauseHow::kKeep;
  if (mode == "wait") {
    return Unimplemented(
        "a pause of mode wait: use keep, after which requests under way go on, or abort");
  }
  return BadField("mode", absl::StrCat("mode is ", mode, ", want abort or keep"));
}

absl::StatusOr<WeightControl::Update> ReadUpdate(const Json& update) {
  if (!update.is_object()) return BadField("update_info", "the update is no JSON object");
  JsonFields fields(update);
  WeightControl::Update read;
  read.directory = fields.Text("weight_dir").value_or("");
  if (const Json* const digests = fields.Find("digests")) {
    for (const auto& [name, digest] : digests->items()) {
      if (!digests->is_object() || !digest.is_string()) {
        return BadField("digests", "digests is no object of texts by tensor");
      }
      read.digests[name] = digest.get<std::string>();
    }
  }
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (read.directory.empty()) {
    return AboutField("weight_dir",
                      Unimplemented("there is no weight_dir: weights come from a directory of this "
                                    "machine here, not by NCCL or IPC"));
  }
  return read;
}

absl::StatusOr<std::optional<int64_t>> VersionNamed(const std::optional<std::string>& name) {
  if (!name || name->empty()) return std::nullopt;
  int64_t version = 0;
  if (absl::SimpleAtoi(*name, &version) && version >= 0) return version;
  return BadField("weight_version", absl::StrCat("weight_version is '", *name,
                                                 "', want a number: every token carries the "
                                                 "version that drew it, and versions rise"));
}

}  // namespace tandem::rollout
