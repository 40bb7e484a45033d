#include "cli/plan/memory_plan.h"

#include <algorithm>
#include <utility>

#include "common/model/forward_kernels.h"
#include "common/model/quantisation_plan.h"
#include "rollout_server/engine/cuda/step/memory_plan.h"
#include "rollout_server/engine/forward/model_runner.h"
#include "rollout_server/engine/forward/model_weights.h"

namespace tandem::plan {
namespace {

// A row's logits that are kept between its passes (kMaxKeptLogits of trainer/policy/policy.cc), and
// the rows of logits that are computed at a time otherwise (LayerOps::logit_chunk_rows).
constexpr int64_t kMaxKeptLogits = 100'000'000;
constexpr int64_t kLogitRowsOnCpu = 256, kLogitRowsOnDevice = 1024;

// What glibc keeps of freed activations and cannot use again for the next row's, as a share of
// them: with KeepFreedMemory it goes back to the kernel only between train steps. Measured with
// glibc 2.36 on rows of 80 to 1000 tokens (docs/memory.md, tests/bench/kept_memory.py). In fp32 less
// is kept where rows are not scored before their updates. On a CPU with bf16 instructions the casts,
// made anew after every update, fill a part of the holes. A device's allocator has other holes,
// which are not planned.
constexpr double kKeptShare = 0.75, kKeptShareOfUpdates = 0.55, kKeptShareBf16 = 0.4;

// Deltas of a push to bf16 servers take one part in so many of its tensors. To fp32 servers they may
// take as much as the tensors, since every element changes.
constexpr int64_t kDeltaPartBf16 = 4;

// MeasureMachineLimits (common/tensor/machine_limits.h), and kLogitsRows of ModelRunner.
constexpr int64_t kMeasurementBytes = int64_t{256} << 20;
constexpr int64_t kLogitRowsOfServer = 64;

struct ModelSizes {
  int64_t all = 0;        // N
  int64_t linear = 0;     // weights of the layers' products
  int64_t head = 0;       // V E
  int64_t layer = 0;      // parameters of one layer
  int64_t embedding = 0;  // of the embedding's stage
};

ModelSizes SizesOf(const ModelConfig& config) {
  ModelSizes sizes;
  sizes.head = sizes.embedding = config.vocab_size * config.hidden_size;
  int64_t in_layers = 0;
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    const int64_t count = spec.num_elements();
    sizes.all += count;
    if (spec.name.starts_with("model.layers.")) {
      in_layers += count;
      if (spec.shape.size() == 2) sizes.linear += count;
    }
  }
  sizes.layer = in_layers / config.num_layers;
  return sizes;
}

int64_t CopyBytes(ComputeDType dtype) { return dtype == ComputeDType::kBf16 ? 2 : 4; }

class Trainer {
 public:
  explicit Trainer(const TrainerShape& shape)
      : shape_(shape),
        sizes_(SizesOf(shape.policy)),
        on_cpu_(shape.device == Device::kCpu),
        adapters_(AdapterParameters(shape)),
        parts_(shape.shard_parameters && adapters_ == 0 ? shape.ranks : 1) {}

  ProcessMemory Memory() {
    if (on_cpu_) {
      // ReadModelTensors maps the file, and the learner keeps it to measure the distance from it.
      Add("model file, mapped", "file", sizes_.all * DTypeBytes(shape_.file_dtype));
    }
    AddModel("policy", sizes_, shape_.over_vocabulary, /*trainable=*/adapters_ == 0);
    if (adapters_ > 0) AddAdapters();
    if (shape_.has_reference && adapters_ == 0)
      AddModel("reference", sizes_, true, /*trainable=*/false);
    if (shape_.critic.has_value()) {
      ModelConfig trunk = *shape_.critic;
      trunk.tie_word_embeddings = true;  // a critic has no head over the vocabulary
      AddModel("critic", SizesOf(trunk), /*has_head=*/false, /*trainable=*/true);
    }
    if (parts_ > 1) AddGathered();
    const bool sends_adapters = adapters_ > 0 && shape_.lora.push == LoraPush::kAdapters;
    if (shape_.push_dtype.has_value() && on_cpu_ && !sends_adapters) {
      AddPassesOrPush(*shape_.push_dtype);
    } else {
      AddPasses();
    }
    Add("experience batch", "128 bytes a token", shape_.batch_tokens * 128);
    if (!on_cpu_) Add("CUDA context and libraries", "estimate", rollout::cuda::kDriverBytes);
    return std::move(memory_);
  }

 private:
  void Add(std::string name, std::string about, int64_t bytes) {
    if (bytes > 0) memory_.parts.push_back({std::move(name), std::move(about), bytes});
  }

  // PlacedPolicy, AdamW and Policy::Impl::RefreshWeight. Moments are those of the rank's own slices,
  // also where parameters are not sharded.
  void AddModel(const std::string& name, const ModelSizes& sizes, bool has_head, bool trainable) {
    const std::string share = parts_ > 1 ? " / ranks" : "";
    Add(name + " masters", "4 N" + share, 4 * sizes.all / parts_);
    if (trainable) {
      Add(name + " gradients", "4 N" + share, 4 * sizes.all / parts_);
      Add(name + " moments", shape_.ranks > 1 ? "8 N / ranks" : "8 N",
          8 * sizes.all / shape_.ranks);
    }
    if (shape_.dtype != ComputeDType::kBf16 || parts_ > 1) return;
    const int64_t head = has_head ? sizes.head : 0;
    if (!on_cpu_) {
      Add(name + " cast copy", "2 bytes a weight of a product", 2 * (sizes.linear + head));
    } else if (!shape_.fast_bf16) {
      Add(name + " cast copy", "bf16 values in fp32: 4 bytes a weight of the layers' products",
          4 * sizes.linear);
    } else {
      Add(name + " cast copy", "2 bytes a weight of a product",
          2 * (sizes.linear + (trainable ? head : 0)));
    }
  }

  // A and B of every adapted layer; what is pushed is a copy, and the one before is kept too. The
  // reference policy is the base.
  void AddAdapters() {
    const int64_t parts = shape_.shard_parameters ? shape_.ranks : 1;
    const std::string share = parts > 1 ? " / ranks" : "";
    Add("adapters, masters and gradients", "8 P" + share, 8 * adapters_ / parts);
    Add("adapters, moments", shape_.ranks > 1 ? "8 P / ranks" : "8 P",
        8 * adapters_ / shape_.ranks);
    if (shape_.push_dtype.has_value()) Add("push: adapters of two versions", "8 P", 8 * adapters_);
  }

  static int64_t AdapterParameters(const TrainerShape& shape) {
    int64_t count = 0;
    if (!shape.lora.enabled()) return count;
    const auto modules = LoraModules(shape.policy, shape.lora);
    if (!modules.ok()) return count;  // refused before anything starts
    for (const LoraModule& module : *modules) count += shape.lora.rank * (module.in + module.out);
    return count;
  }

  // ParameterBuckets: the parameters of a stage and of the next one are gathered at once, and the
  // gradients of one; their casts beside them.
  void AddGathered() {
    const int64_t largest = std::max(sizes_.layer, sizes_.embedding);
    const int64_t pair = sizes_.layer + largest;
    const int64_t cast = shape_.dtype == ComputeDType::kBf16 ? 2 * largest : 0;
    Add("gathered parameters", "two stages, one stage's gradients twice",
        4 * pair + 8 * largest + cast);
  }

  // LayerTape of every layer (trainer/policy/decoder.h), or its input alone; ScoreTape; and what
  // the backward pass of the head or of one layer needs beside them, whichever is more.
  void AddPasses() {
    const ModelConfig& c = shape_.policy;
    const int64_t t = shape_.row_tokens, rows = shape_.row_targets;
    const int64_t width = on_cpu_ ? 4 : CopyBytes(shape_.dtype);  // the CPU's activations are fp32
    const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
    const bool qk_norm = c.qk_norm != QkNorm::kNone;
    const int64_t raw = qk_norm ? q + kv : 0;
    const int64_t normed_outputs = c.norms.attention_out.empty() ? 0 : 2 * width * c.hidden_size;
    const int64_t input = 4 * c.hidden_size;
    const int64_t rest = input + width * (2 * q + 2 * kv + raw + 2 * c.intermediate_size) +
                         4 * (2 + c.num_heads + (qk_norm ? c.num_heads + c.num_kv_heads : 0)) +
                         normed_outputs;
    const int64_t kept = shape_.checkpoint_activations ? t * (c.num_layers * input + rest)
                                                       : t * c.num_layers * (input + rest);
    Add("activations",
        shape_.checkpoint_activations ? "inputs of the layers and one layer, T tokens"
                                      : "T tokens of L layers",
        kept);
    if (on_cpu_) {
      Add("kept by the allocator", "holes between activations: measured",
          static_cast<int64_t>(KeptShare() * static_cast<double>(kept)));
    }
    const int64_t one_layer =
        t * (4 * (4 * c.hidden_size + q) + width * (3 * c.intermediate_size + q + 2 * kv));
    const int64_t head = HeadBytes(rows);
    Add("passes, beside the activations", "logits and their gradient, or one layer's gradients",
        std::max(head, one_layer));
  }

  double KeptShare() const {
    if (shape_.dtype == ComputeDType::kFp32) {
      return shape_.scores_first ? kKeptShare : kKeptShareOfUpdates;
    }
    return shape_.fast_bf16 ? kKeptShareBf16 : kKeptShare;
  }

  // Logits, [R, V] or a chunk of them, and the gradient of the head's weight.
  int64_t HeadBytes(int64_t rows) const {
    const ModelConfig& c = shape_.policy;
    const int64_t states = 4 * rows * 4 * c.hidden_size;  // hidden, normed, and their gradients
    if (!shape_.over_vocabulary) return states;
    const bool kept = rows * c.vocab_size <= kMaxKeptLogits;
    const int64_t head = adapters_ > 0 ? 0 : sizes_.head;  // the head's gradient
    const int64_t chunk = on_cpu_ ? kLogitRowsOnCpu : kLogitRowsOnDevice;
    const int64_t logits = (kept ? rows : std::min(rows, chunk)) * c.vocab_size;
    const bool bf16 = shape_.dtype == ComputeDType::kBf16;
    if (bf16 && (!on_cpu_ || shape_.fast_bf16)) return states + 6 * logits + 2 * head;
    return states + 8 * logits + 4 * head;
  }

  // WeightCaster keeps a copy of the masters and their cast, and WeightPublisher the deltas, each of
  // this rank's part, until the next version's are made. Those are made when the passes are over:
  // the larger of the two counts.
  void AddPassesOrPush(DType dtype) {
    const int64_t cast = DTypeBytes(dtype) * sizes_.all / parts_;
    const int64_t deltas = dtype == DType::kBF16 ? cast / kDeltaPartBf16 : cast;
    Add("push: masters of the last version", "4 N", 4 * sizes_.all / parts_);
    Add("push: cast of the last version", "the servers' bytes of N", cast);
    Add("push: its deltas", "what changed, at most the servers' bytes of N", deltas);
    const size_t held = memory_.parts.size();
    const int64_t without = memory_.total();
    AddPasses();
    if (memory_.total() - without >= cast + deltas) return;
    memory_.parts.resize(held);
    Add("push: cast and deltas of the next version", "more than the passes before it need",
        cast + deltas);
  }

  const TrainerShape& shape_;
  const ModelSizes sizes_;
  const bool on_cpu_;
  const int64_t adapters_;  // P
  const int64_t parts_;     // of the policy's weights
  ProcessMemory memory_;
};

}  // namespace

int64_t ProcessMemory::total() const {
  int64_t sum = 0;
  for (const MemoryPart& part : parts) sum += part.bytes;
  return sum;
}

ProcessMemory TrainerMemory(const TrainerShape& shape) {
  ProcessMemory memory = Trainer(shape).Memory();
  memory.name = "trainer rank";
  return memory;
}

ProcessMemory ServerMemory(const ServerShape& shape) {
  const rollout::EngineOptions& engine = shape.engine;
  ProcessMemory memory = {.name = "rollout server"};
  const auto add = [&](const char* name, const char* about, int64_t bytes) {
    if (bytes > 0) memory.parts.push_back({name, about, bytes});
  };
  const DType dtype = engine.weight_dtype();
  const int64_t tokens = engine.kv_capacity_tokens;
  const int64_t blocks = tokens / kKvBlockTokens;
  const auto plan = MakeQuantisationPlan(shape.config, engine.quantised);
  const int64_t cache = rollout::ModelRunner::CacheBytes(
      shape.config, engine.dtype, plan.ok() ? plan->kv : KvFormat::kDtype, blocks);
  if (engine.device == Device::kCuda) {
    const int64_t weights = rollout::cuda::WeightsBytes(shape.config, dtype);
    add("weights", "of one version", weights);
    if (shape.takes_pushes) {
      add("next version of the weights", "a push is staged there", weights);
      add("push buffers", "NCCL and buckets: estimate", rollout::cuda::kPushBytes);
    }
    add("largest step", "arrays of max_step_tokens",
        rollout::cuda::StepBytes(shape.config, dtype, engine.max_step_tokens,
                                 engine.max_batch_sequences));
    if (engine.cuda_graphs) {
      add("CUDA graphs", "estimate", rollout::cuda::kGraphBytes * rollout::cuda::kMostGraphs / 4);
    }
    add("CUDA context and libraries", "estimate", rollout::cuda::kDriverBytes);
    const int64_t rest =
        shape.device_bytes - memory.total() - shape.device_bytes / rollout::cuda::kSpareShare;
    add("KV cache", tokens == 0 ? "what is left" : "kv_capacity_tokens",
        tokens == 0 ? std::max<int64_t>(0, rest) : cache);
    return memory;
  }
  // Both versions and the cache are there from the start on (reserve_for_push). Beside them, one
  // after the other: the file and its cast, while it is packed; the measurement of the machine; and
  // the tensors of a push, whose memory is taken before the server is ready.
  const int64_t all = SizesOf(shape.config).all;
  const int64_t sent = all * DTypeBytes(dtype), file = all * DTypeBytes(shape.file_dtype);
  const int64_t weights =
      plan.ok() && plan->quantises() ? rollout::PackedModelBytes(shape.config, dtype, *plan) : sent;
  const int64_t cast = dtype == shape.file_dtype ? 0 : sent;
  const int64_t staging = shape.takes_pushes ? sent : 0;
  add("weights", "packed for the kernels", weights);
  const bool unmerged = engine.lora == rollout::LoraPlace::kUnmerged;
  if (shape.takes_pushes && !unmerged) add("next version of the weights", "packed", weights);
  if (shape.takes_adapters && !unmerged) add("base", "that adapters are merged into", sent);
  add("KV cache", "kv_capacity_tokens", cache);
  if (staging >= std::max(file + cast, kMeasurementBytes)) {
    add("staging of a push", "tensors as they arrive", staging);
  } else if (file + cast > kMeasurementBytes) {
    add("model file, mapped, and its cast", "at the start", file + cast);
  } else {
    add("measurement of the machine", "at the start", kMeasurementBytes);
  }
  // ModelRunner::Reserve, and rows of logits.
  const ModelConfig& c = shape.config;
  const int64_t in_fp32 = c.hidden_size + (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
  const int64_t operands = c.hidden_size + c.num_heads * c.head_dim + c.intermediate_size;
  add("largest step", "arrays of max_step_tokens",
      engine.max_step_tokens * (4 * in_fp32 + CopyBytes(engine.dtype) * operands) +
          4 * kLogitRowsOfServer * c.vocab_size);
  return memory;
}

}  // namespace tandem::plan
