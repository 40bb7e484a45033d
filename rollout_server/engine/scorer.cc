#include "rollout_server/engine/scorer.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "rollout_server/engine/sampler.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kPrefillChunk = 256;  // tokens of a sequence computed together

// Blocks borrowed from the scheduler for the time of one score.
class BorrowedBlocks {
 public:
  explicit BorrowedBlocks(Scheduler* scheduler) : scheduler_(scheduler) {}
  ~BorrowedBlocks() {
    for (const auto& table : tables_) scheduler_->GiveBack(table);
  }
  BorrowedBlocks(const BorrowedBlocks&) = delete;
  BorrowedBlocks& operator=(const BorrowedBlocks&) = delete;

  // A block table for `num_tokens` tokens; false when too few blocks are left.
  bool Add(int64_t num_tokens) {
    auto blocks = scheduler_->Borrow(KvBlockPool::BlocksFor(num_tokens));
    if (blocks) tables_.push_back(*std::move(blocks));
    return blocks.has_value();
  }

  const std::vector<std::vector<BlockId>>& tables() const { return tables_; }

 private:
  Scheduler* const scheduler_;
  std::vector<std::vector<BlockId>> tables_;
};

// A token whose logits are wanted: they predict token `position + 1` of `sequence`.
struct Prediction {
  size_t sequence = 0;
  int64_t position = 0;
};

void RunAndRead(const ScoreContext& context,
                        const std::vector<std::vector<int32_t>>& sequences,
                        const std::vector<TokenInput>& inputs,
                        const std::vector<Prediction>& predictions, float temperature,
                        std::vector<std::vector<float>>& out) {
  std::vector<int64_t> rows(inputs.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  context.runner->Run(*context.weights, inputs, rows,
                      [&](int64_t row, std::span<const float> logits) {
                        const auto& [s, position] = predictions[row];
                        out[s][position + 1] =
                            LogSoftmaxAt(logits, temperature, sequences[s][position + 1]);
                      });
}

absl::Status NoBlocks(size_t tokens) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no KV cache is free for a sequence of ", tokens, " tokens; score when fewer groups run"));
}

absl::Status Prefill(const ScoreContext& context,
                     const std::vector<std::vector<int32_t>>& sequences, float temperature,
                     std::vector<std::vector<float>>& out) {
  const int64_t chunk = std::min(kPrefillChunk, context.max_step_tokens);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t size = static_cast<int64_t>(sequences[s].size());
    BorrowedBlocks borrowed(context.scheduler);
    if (!borrowed.Add(size - 1)) return NoBlocks(sequences[s].size());
    for (int64_t begin = 0; begin < size - 1; begin += chunk) {
      std::vector<TokenInput> inputs;
      std::vector<Prediction> predictions;
      for (int64_t t = begin; t < std::min(size - 1, begin + chunk); ++t) {
        inputs.push_back({sequences[s][t], static_cast<int32_t>(t), &borrowed.tables()[0]});
        predictions.push_back({s, t});
      }
      RunAndRead(context, sequences, inputs, predictions, temperature, out);
    }
  }
  return absl::OkStatus();
}

absl::Status Decode(const ScoreContext& context, const std::vector<std::vector<int32_t>>& sequences,
                    float temperature, std::vector<std::vector<float>>& out) {
  size_t next = 0;
  while (next < sequences.size()) {
    BorrowedBlocks borrowed(context.scheduler);
    const size_t first = next;
    while (next < sequences.size() &&
           static_cast<int64_t>(next - first) < context.max_sequences &&
           borrowed.Add(static_cast<int64_t>(sequences[next].size()) - 1)) {
      ++next;
    }
    if (next == first) return NoBlocks(sequences[first].size());
    for (int64_t t = 0;; ++t) {
      std::vector<TokenInput> inputs;
      std::vector<Prediction> predictions;
      for (size_t s = first; s < next; ++s) {
        if (t + 1 >= static_cast<int64_t>(sequences[s].size())) continue;
        inputs.push_back(
            {sequences[s][t], static_cast<int32_t>(t), &borrowed.tables()[s - first]});
        predictions.push_back({s, t});
      }
      if (inputs.empty()) break;
      RunAndRead(context, sequences, inputs, predictions, temperature, out);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::vector<float>>> ScoreSequences(
    const ScoreContext& context, const std::vector<std::vector<int32_t>>& sequences,
    float temperature, ScorePath path) {
  std::vector<std::vector<float>> out;
  for (const auto& ids : sequences) out.emplace_back(ids.size(), 0.0f);
  if (path == ScorePath::kPrefill) {
    TANDEM_RETURN_IF_ERROR(Prefill(context, sequences, temperature, out));
  } else {
    TANDEM_RETURN_IF_ERROR(Decode(context, sequences, temperature, out));
  }
  return out;
}

}  // namespace tandem::rollout
