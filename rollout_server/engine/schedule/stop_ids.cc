#include "rollout_server/engine/schedule/stop_ids.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tandem::rollout {

// Goes through a bit set, which orders and removes duplicates in one pass: a request may have a
// quarter of a million ids.
StopIds::StopIds(const SamplingParams& sampling, std::span<const int32_t> eos_token_ids,
                 int64_t vocab_size) {
  std::vector<int32_t> bits(static_cast<size_t>((vocab_size + 31) / 32));
  const auto add = [&](std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
      int32_t& word = bits[static_cast<size_t>(id / 32)];
      word = static_cast<int32_t>(static_cast<uint32_t>(word) | uint32_t{1} << (id % 32));
    }
  };
  add(sampling.stop_token_ids);
  if (!sampling.ignore_eos) add(eos_token_ids);
  for (size_t w = 0; w < bits.size(); ++w) {
    for (auto left = static_cast<uint32_t>(bits[w]); left != 0; left &= left - 1) {
      rising_.push_back(static_cast<int32_t>(w * 32) + std::countr_zero(left));
    }
  }
  rising_.shrink_to_fit();
  if (rising_.size() > bits.size()) bits_ = std::move(bits);
}

bool StopIds::Has(int32_t id) const { return std::ranges::binary_search(rising_, id); }

}  // namespace tandem::rollout
