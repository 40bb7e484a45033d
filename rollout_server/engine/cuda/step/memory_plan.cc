#include "rollout_server/engine/cuda/step/memory_plan.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "rollout_server/engine/cuda/draw/draw_kernel.h"
#include "rollout_server/engine/cuda/step/decode_step.h"
#include "rollout_server/engine/cuda/step/step_inputs.h"
#include "rollout_server/engine/schedule/kv_block_pool.h"

namespace tandem::rollout::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kFp32 = 4;

// What LibTorch's allocator takes: multiples of 512 bytes for a small array, of 2 MiB for a large
// one.
int64_t Allocated(int64_t bytes) {
  const int64_t unit = bytes < kMiB ? 512 : 2 * kMiB;
  return (bytes + unit - 1) / unit * unit;
}

int64_t BlockBytes(const ModelConfig& config, DType dtype) {
  return 2 * config.num_layers * config.num_kv_heads * KvBlockPool::kBlockTokens * config.head_dim *
         DTypeBytes(dtype);
}

// Bytes of a step's attention: scores and sums of paged attention, or keys and values gathered for
// flash attention with its output and log-sum-exps. They do not live at once, so the larger counts.
int64_t AttentionBytes(const ModelConfig& config, DType dtype, int64_t tokens) {
  const int64_t longest = config.max_position_embeddings;
  const int64_t each =
      tandem::cuda::AttentionScratch(1, config.num_heads, config.head_dim, longest) * kFp32;
  const int64_t paged = std::max(each, std::min(tokens * each, kAttentionScratchFloats * kFp32));
  const int64_t gathered = std::max(longest, kGatheredTokens) *
                           (2 * config.num_kv_heads * config.head_dim * DTypeBytes(dtype) + 8);
  const int64_t flash =
      gathered + tokens * config.num_heads * (config.head_dim * DTypeBytes(dtype) + kFp32);
  return std::max(paged, flash);
}

int64_t LogitsBytes(const ModelConfig& config, DType dtype, int64_t rows) {
  const int64_t together = std::min(rows, kLogitsRows);
  const int64_t parts = dtype == DType::kBF16 ? 2 : 1;  // the head's inputs in two parts
  const int64_t logits =
      together * parts * (config.vocab_size * kFp32 + config.hidden_size * DTypeBytes(dtype));
  // The most that a row has: the ids that filters leave, and words of forbidden ids
  // (StopIds::words).
  const int64_t recorded =
      rows *
      (2 * KeptWords(config.vocab_size) * 4 + kMostTop * static_cast<int64_t>(sizeof(TopId)) +
       static_cast<int64_t>(sizeof(Draw) + sizeof(Drawn) + sizeof(Scored)));
  return logits + recorded + DrawWorkspaceBytes(config.vocab_size, rows);
}

std::string MiB(int64_t bytes) { return absl::StrCat((bytes + kMiB - 1) / kMiB, " MiB"); }

absl::Status TooLittle(const MemoryPlan& plan, int64_t block_bytes, int64_t asked_tokens) {
  const int64_t left = plan.device.free_bytes - plan.rest_bytes();
  const int64_t fits = std::max<int64_t>(0, left) / block_bytes * KvBlockPool::kBlockTokens;
  std::string what = absl::StrCat("the CUDA device has ", MiB(plan.device.free_bytes), " free of ",
                                  MiB(plan.device.total_bytes), ", and is too small for ");
  if (fits == 0) {
    absl::StrAppend(&what,
                    "this model with engine.max_step_tokens and engine.max_batch_sequences "
                    "as they are, before any KV cache");
  } else {
    absl::StrAppend(&what, "engine.kv_capacity_tokens ", asked_tokens, ": at most ", fits,
                    " fit, and 0 takes what is left");
  }
  return ResourceExhausted(what, "\n", plan.Text());
}

}  // namespace

int64_t WeightsBytes(const ModelConfig& config, DType dtype) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : ModelTensors(config, dtype)) {
    // Norms and biases are stored in fp32.
    const int64_t each = spec.shape.size() == 1 ? kFp32 : DTypeBytes(dtype);
    bytes += Allocated(spec.num_elements() * each);
  }
  return bytes;
}

int64_t StepBytes(const ModelConfig& config, DType dtype, int64_t tokens, int64_t logits_rows) {
  const int64_t each = DTypeBytes(dtype), e = config.hidden_size;
  const int64_t heads = config.num_heads * config.head_dim;
  const int64_t qkv = heads + 2 * config.num_kv_heads * config.head_dim;
  const int64_t blocks = KvBlockPool::BlocksFor(config.max_position_embeddings);
  const int64_t inputs = 4 * 4 + 2 * 8 + 4 * blocks;  // ids and their like, and a block table
  const int64_t stream = 3 * kFp32 * e + each * e;    // hidden, two deltas, one norm
  const int64_t attention = kFp32 * (qkv + heads) + (2 + each) * heads;
  const int64_t mlp = (2 * kFp32 + each) * config.intermediate_size;
  return tokens * (inputs + stream + attention + mlp) + AttentionBytes(config, dtype, tokens) +
         LogitsBytes(config, dtype, logits_rows);
}

int64_t MemoryPlan::rest_bytes() const {
  return weight_versions * weights_bytes + step_bytes + graph_bytes + push_bytes + driver_bytes +
         spare_bytes;
}

std::string MemoryPlan::Text() const {
  std::string text = absl::StrCat("weights ", weight_versions, " x ", MiB(weights_bytes),
                                  ", largest step ", MiB(step_bytes));
  if (graph_bytes > 0) absl::StrAppend(&text, ", graphs ", MiB(graph_bytes));
  if (push_bytes > 0) absl::StrAppend(&text, ", pushes ", MiB(push_bytes));
  absl::StrAppend(&text, ", CUDA and cuBLAS ", MiB(driver_bytes), ", spare ", MiB(spare_bytes));
  absl::StrAppend(&text, ", KV cache ", MiB(kv_bytes), " (", num_blocks * KvBlockPool::kBlockTokens,
                  " tokens): ", MiB(rest_bytes() + kv_bytes), " of ", MiB(device.free_bytes),
                  " free");
  return text;
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const EngineOptions& options,
                                      const DeviceMemory& device) {
  const DType dtype = options.weight_dtype();
  MemoryPlan plan;
  plan.device = device;
  plan.weight_versions = options.reserve_for_push ? 2 : 1;
  plan.weights_bytes = WeightsBytes(config, dtype);
  const int64_t tokens = std::max(options.max_step_tokens, options.max_batch_sequences);
  // A score needs logits of every token of its steps.
  const int64_t rows = std::max(options.max_batch_sequences, std::min(tokens, kLogitsRows));
  plan.step_bytes = std::max(StepBytes(config, dtype, tokens, rows), kMeasurementBytes);
  if (options.cuda_graphs) {
    const int64_t padded = PaddedRows(std::min(options.max_batch_sequences, kMaxGraphRows));
    const auto fixed = static_cast<int64_t>(LayoutOf({kMaxGraphRows, kMaxGraphChunks, 0}).bytes);
    plan.graph_bytes =
        fixed + StepBytes(config, dtype, padded, padded) + LogitsBytes(config, dtype, 0) +
        kMaxGraphRows *
            (KeptWords(config.vocab_size) * 4 + kMostTop * static_cast<int64_t>(sizeof(TopId))) +
        kMostGraphs * kGraphBytes;
  }
  if (options.reserve_for_push) plan.push_bytes = kPushBytes;
  plan.driver_bytes = kDriverBytes;
  plan.spare_bytes = device.total_bytes / kSpareShare;
  const int64_t block_bytes = BlockBytes(config, dtype);
  const int64_t left = device.free_bytes - plan.rest_bytes();
  const int64_t fits = std::max<int64_t>(0, left) / block_bytes;
  plan.num_blocks = options.kv_capacity_tokens == 0
                        ? std::min(fits, kMostKvTokens / KvBlockPool::kBlockTokens)
                        : options.num_blocks();
  plan.kv_bytes = plan.num_blocks * block_bytes;
  if (plan.num_blocks == 0 || plan.num_blocks > fits) {
    return TooLittle(plan, block_bytes, options.kv_capacity_tokens);
  }
  return plan;
}

}  // namespace tandem::rollout::cuda
