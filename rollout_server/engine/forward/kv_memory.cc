#include "rollout_server/engine/forward/kv_memory.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "rollout_server/engine/schedule/kv_block_pool.h"

namespace tandem::rollout {
namespace {

std::string Mib(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

absl::Status CheckKvMemory(const KvMemory& wanted, std::optional<int64_t> available) {
  const int64_t others = wanted.weight_bytes + wanted.push_bytes;
  if (!available || wanted.cache_bytes + others <= *available) return absl::OkStatus();
  std::vector<std::string> parts;
  if (wanted.cache_bytes > 0) {
    parts.push_back(absl::StrCat("a KV cache of ", wanted.capacity_tokens, " tokens takes ",
                                 Mib(wanted.cache_bytes)));
  }
  if (wanted.weight_bytes > 0) parts.push_back("the weights " + Mib(wanted.weight_bytes));
  if (wanted.push_bytes > 0) parts.push_back("a push of weights " + Mib(wanted.push_bytes));
  const std::string need = absl::StrCat(absl::StrJoin(parts, ", "),
                                        ", and this process can still take ", Mib(*available));
  // A twentieth stays for everything else.
  const int64_t left = *available / 20 * 19 - others;
  if (wanted.cache_bytes > 0 && left > 0) {
    const double fits = static_cast<double>(left) / static_cast<double>(wanted.cache_bytes) *
                        static_cast<double>(wanted.capacity_tokens);
    const int64_t tokens =
        static_cast<int64_t>(fits) / KvBlockPool::kBlockTokens * KvBlockPool::kBlockTokens;
    if (tokens > 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat(need, ": lower engine.kv_capacity_tokens to at most ", tokens));
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(need, ": the model needs a machine or a memory limit that is larger"));
}

}  // namespace tandem::rollout
