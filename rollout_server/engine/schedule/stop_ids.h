// StopIds: the ids that end the completions of one group, and that min_new_tokens forbids at first.
// Made once, when the group is admitted, and shared by all its samples (stage 2). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

class StopIds {
 public:
  StopIds() = default;  // none

  // The stop_token_ids and, unless ignore_eos, the model's end tokens; all in [0, vocab_size).
  StopIds(const SamplingParams& sampling, std::span<const int32_t> eos_token_ids,
          int64_t vocab_size);

  bool Has(int32_t id) const;
  bool empty() const { return rising_.empty(); }

  // Each id once.
  const std::vector<int32_t>& rising() const { return rising_; }

  // The form for a device, of at most one word for 32 ids of the vocabulary, so that its memory can
  // be planned: `rising`, or with is_bits a bit set, where id i is bit i % 32 of word i / 32.
  const std::vector<int32_t>& words() const { return bits_.empty() ? rising_ : bits_; }
  bool is_bits() const { return !bits_.empty(); }

  int64_t num_bytes() const {
    return static_cast<int64_t>((rising_.size() + bits_.size()) * sizeof(int32_t));
  }

 private:
  std::vector<int32_t> rising_;
  std::vector<int32_t> bits_;  // empty where the list is not longer
};

}  // namespace tandem::rollout
