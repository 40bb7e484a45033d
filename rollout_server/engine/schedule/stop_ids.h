// StopIds: the ids that end the completions of one group, and that min_new_tokens forbids until
// then. Made once, when the group is admitted: its draws share it, in every step (stage 2). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

class StopIds {
 public:
  StopIds() = default;  // none

  // The stop_token_ids and, unless ignore_eos, the model's own. All lie in [0, vocab_size).
  StopIds(const SamplingParams& sampling, std::span<const int32_t> eos_token_ids,
          int64_t vocab_size);

  bool Has(int32_t id) const;
  bool empty() const { return rising_.empty(); }

  // Each id once, however often it was asked for.
  const std::vector<int32_t>& rising() const { return rising_; }

  // What a device gets: at most one word for 32 ids of the vocabulary, so that its memory for them
  // can be planned. As `rising`, or with is_bits as bits: id i is bit i % 32 of word i / 32.
  const std::vector<int32_t>& words() const { return bits_.empty() ? rising_ : bits_; }
  bool is_bits() const { return !bits_.empty(); }

  int64_t num_bytes() const {
    return static_cast<int64_t>((rising_.size() + bits_.size()) * sizeof(int32_t));
  }

 private:
  std::vector<int32_t> rising_;
  std::vector<int32_t> bits_;  // none where the list is no longer than they are
};

}  // namespace tandem::rollout
