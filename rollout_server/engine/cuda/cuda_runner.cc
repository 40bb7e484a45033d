#include "rollout_server/engine/cuda/cuda_runner.h"

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/torch_status.h"
#include "rollout_server/engine/cuda/cuda_weights.h"
#include "rollout_server/engine/cuda/draw_kernel.h"
#include "rollout_server/engine/cuda/kernels.h"
#include "rollout_server/engine/cuda/step_inputs.h"
#include "rollout_server/engine/model_weights.h"

namespace tandem::rollout {
namespace {

using cuda::Element;

constexpr int64_t kLogitsRows = 64;                   // rows of logits that exist at once
constexpr int64_t kFlashTokens = 8;                   // shorter runs of prompt attend row by row
constexpr int64_t kScratchFloats = int64_t{1} << 26;  // of paged attention, at most for many rows

at::TensorOptions On(at::ScalarType type) {
  return at::TensorOptions().dtype(type).device(at::kCUDA);
}

template <typename T>
constexpr at::ScalarType kScalarOf = sizeof(T) == 8 ? at::kLong : at::kInt;

// A copy on the device. The source may go when this returns.
template <typename T>
at::Tensor Upload(const std::vector<T>& values) {
  const auto size = static_cast<int64_t>(values.size());
  return at::from_blob(const_cast<T*>(values.data()), {size},
                       at::TensorOptions().dtype(kScalarOf<T>))
      .to(at::kCUDA);
}

template <typename T>
at::Tensor UploadBytes(const std::vector<T>& values) {
  const auto size = static_cast<int64_t>(values.size() * sizeof(T));
  return at::from_blob(const_cast<T*>(values.data()), {size}, at::TensorOptions().dtype(at::kByte))
      .to(at::kCUDA);
}

const float* Floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

class CudaRunner : public TokenRunner {
 public:
  CudaRunner(const ModelConfig& config, ComputeDType dtype, int64_t num_blocks)
      : config_(config),
        dtype_(dtype == ComputeDType::kBf16 ? DType::kBF16 : DType::kF32),
        type_(dtype == ComputeDType::kBf16 ? at::kBFloat16 : at::kFloat),
        element_(dtype == ComputeDType::kBf16 ? Element::kBf16 : Element::kFp32),
        num_blocks_(num_blocks) {
    const c10::InferenceMode inference;
    cache_ = at::zeros({2 * config.num_layers, num_blocks, config.num_kv_heads,
                        KvBlockPool::kBlockTokens, config.head_dim},
                       On(type_));
    const std::vector<float> frequencies = RotaryInverseFrequencies(config);
    frequencies_ = at::empty({config.head_dim / 2}, On(at::kFloat));
    frequencies_.copy_(
        at::from_blob(const_cast<float*>(frequencies.data()), {config.head_dim / 2}));
  }

  absl::StatusOr<std::unique_ptr<StagedWeights>> Pack(
      const std::vector<HostTensor>& tensors, std::unique_ptr<StagedWeights> spare) const override {
    TANDEM_RETURN_IF_ERROR(CheckModelTensors(config_, tensors, dtype_));
    std::unique_ptr<CudaWeights> place(static_cast<CudaWeights*>(spare.release()));
    try {
      return std::unique_ptr<StagedWeights>(
          UploadWeights(config_, tensors, dtype_, std::move(place)));
    } catch (const c10::OutOfMemoryError& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no device memory for weights: ", error.what_without_backtrace()));
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("weights to the device: ", error.what()));
    }
  }

  bool Packed(const StagedWeights* weights) const override {
    return dynamic_cast<const CudaWeights*>(weights) != nullptr;
  }

  absl::Status Run(const StagedWeights& weights, std::span<const TokenInput> inputs,
                   std::span<const int64_t> logits_rows, OnLogits on_logits,
                   const SitePrecision& precision, const KvQuantisation& kv_quantisation) override {
    if (!(precision == SitePrecision{}) || !(kv_quantisation == KvQuantisation{})) {
      return absl::UnimplementedError(
          "rounding at sites of the forward on a CUDA device: use device cpu");
    }
    return CatchTorch("forward on the CUDA device", [&] {
      const c10::InferenceMode inference;
      Forward(static_cast<const CudaWeights&>(weights), inputs, logits_rows,
              [&](int64_t first, const at::Tensor& logits) { HandOut(first, logits, on_logits); });
    });
  }

  absl::Status RunAndDraw(const StagedWeights& weights, std::span<const TokenInput> inputs,
                          std::span<const int64_t> logits_rows, std::span<const TokenDraw> draws,
                          std::span<absl::StatusOr<SampledToken>> tokens) override {
    return CatchTorch("forward on the CUDA device", [&] {
      const c10::InferenceMode inference;
      Forward(static_cast<const CudaWeights&>(weights), inputs, logits_rows,
              [&](int64_t first, const at::Tensor& logits) { Draw(first, logits, draws, tokens); });
    });
  }

  void CopyBlocks(std::span<const BlockCopy> copies) override {
    const size_t block = cache_[0][0].nbytes(), layer = cache_[0].nbytes();
    auto* const base = static_cast<char*>(cache_.data_ptr());
    for (const BlockCopy& copy : copies) {
      // A failure shows in the next step's KernelError.
      cudaMemcpy2DAsync(base + static_cast<size_t>(copy.to) * block, layer,
                        base + static_cast<size_t>(copy.from) * block, layer, block,
                        static_cast<size_t>(2 * config_.num_layers), cudaMemcpyDeviceToDevice,
                        Stream());
    }
  }

  Account account() const override { return account_; }
  MachineLimits MeasureLimits() override;

 private:
  static cuda::Stream Stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
  static void Wait() { c10::cuda::getCurrentCUDAStream().synchronize(); }

  // x [N, I] times weight [O, I] transposed, in fp32.
  static at::Tensor Multiply(const at::Tensor& x, const at::Tensor& weight) {
    if (x.scalar_type() == at::kFloat) return at::mm(x, weight.t());
    return at::mm(x, weight.t(), at::kFloat);
  }

  // The inputs of one step on the device.
  struct OnDevice {
    at::Tensor ids, positions, sequences, contexts, slots, block_tables, logits_rows;
    struct Flash {
      at::Tensor query_ends, key_ends, slots;
    };
    std::vector<Flash> flash;  // for each range; empty tensors where it is not flash
  };

  // Calls on_logits(first row, logits [<= kLogitsRows, V]) for slices of the rows.
  template <typename OnSlice>
  void Forward(const CudaWeights& weights, std::span<const TokenInput> inputs,
               std::span<const int64_t> logits_rows, const OnSlice& on_slice) {
    const cuda::StepInputs step =
        cuda::LayOut(inputs, element_ == Element::kBf16 ? kFlashTokens : 0);
    account_ = AccountOf(weights, step, static_cast<double>(logits_rows.size()));
    const OnDevice on_device = ToDevice(step, logits_rows);
    const auto n = static_cast<int64_t>(inputs.size());
    at::Tensor hidden = at::empty({n, config_.hidden_size}, On(at::kFloat));
    cuda::Embed(weights.embedding.const_data_ptr(), element_,
                on_device.ids.const_data_ptr<int32_t>(), n, config_.hidden_size,
                hidden.data_ptr<float>(), Stream());
    at::Tensor delta;  // what the layer before still has to add
    const at::Tensor* bias = nullptr;
    for (size_t i = 0; i < weights.layers.size(); ++i) {
      const CudaLayer& layer = weights.layers[i];
      at::Tensor normed = Norm(hidden, delta, bias, layer.input_norm, n);
      const at::Tensor attended = Attend(static_cast<int64_t>(i), layer,
                                         Multiply(normed, layer.qkv.weight), step, on_device);
      normed = Norm(hidden, Multiply(attended, layer.o.weight), &layer.o.bias, layer.post_norm, n);
      const at::Tensor gate_up = Multiply(normed, layer.gate_up.weight);
      at::Tensor activated = at::empty({n, config_.intermediate_size}, On(type_));
      cuda::SwiGlu(Floats(gate_up), Floats(layer.gate_up.bias), n, config_.intermediate_size,
                   activated.data_ptr(), element_, Stream());
      delta = Multiply(activated, layer.down.weight);
      bias = &layer.down.bias;
    }
    const auto total = static_cast<int64_t>(logits_rows.size());
    for (int64_t first = 0; first < total; first += kLogitsRows) {
      const int64_t rows = std::min(kLogitsRows, total - first);
      on_slice(first,
               Head(weights, hidden, delta, bias, on_device.logits_rows.narrow(0, first, rows)));
    }
    Wait();
    if (const char* const error = cuda::KernelError())
      TORCH_CHECK(false, "a kernel failed: ", error);
  }

  // Before the first kernel: an upload waits for what the stream has been given.
  static OnDevice ToDevice(const cuda::StepInputs& step, std::span<const int64_t> logits_rows) {
    OnDevice to;
    to.ids = Upload(step.ids);
    to.positions = Upload(step.positions);
    to.sequences = Upload(step.sequences);
    to.contexts = Upload(step.contexts);
    to.slots = Upload(step.slots);
    to.block_tables = Upload(step.block_tables);
    to.logits_rows = Upload(std::vector<int64_t>(logits_rows.begin(), logits_rows.end()));
    for (const cuda::RowRange& range : step.ranges) {
      if (range.flash) {
        to.flash.push_back({Upload(range.query_ends), Upload(range.key_ends), Upload(range.slots)});
      } else {
        to.flash.push_back({});
      }
    }
    return to;
  }

  // hidden += delta + bias; its norm.
  at::Tensor Norm(at::Tensor& hidden, const at::Tensor& delta, const at::Tensor* bias,
                  const at::Tensor& weight, int64_t rows) const {
    at::Tensor normed = at::empty({rows, config_.hidden_size}, On(type_));
    cuda::RunAddNorm({.hidden = hidden.data_ptr<float>(),
                      .delta = Floats(delta),
                      .bias = bias == nullptr ? nullptr : Floats(*bias),
                      .weight = Floats(weight),
                      .eps = static_cast<float>(config_.rms_norm_eps),
                      .rows = rows,
                      .width = config_.hidden_size,
                      .normed = normed.data_ptr(),
                      .element = element_},
                     Stream());
    return normed;
  }

  at::Tensor Attend(int64_t index, const CudaLayer& layer, const at::Tensor& qkv,
                    const cuda::StepInputs& step, const OnDevice& on_device) const {
    const int64_t n = qkv.size(0), heads = config_.num_heads, d = config_.head_dim;
    const at::Tensor keys = cache_[2 * index], values = cache_[2 * index + 1];
    const bool any_flash =
        std::any_of(step.ranges.begin(), step.ranges.end(), [](const auto& r) { return r.flash; });
    at::Tensor queries = at::empty({n, heads, d}, On(at::kFloat)), rounded;
    if (any_flash) rounded = at::empty({n, heads, d}, On(at::kBFloat16));
    cuda::RunRotateStore(
        {.qkv = Floats(qkv),
         .bias = Floats(layer.qkv.bias),
         .q_norm = Floats(layer.q_norm),
         .k_norm = Floats(layer.k_norm),
         .eps = static_cast<float>(config_.rms_norm_eps),
         .inverse_frequencies = Floats(frequencies_),
         .positions = on_device.positions.const_data_ptr<int32_t>(),
         .slots = on_device.slots.const_data_ptr<int64_t>(),
         .rows = n,
         .heads = heads,
         .kv_heads = config_.num_kv_heads,
         .head_dim = d,
         .queries = queries.data_ptr<float>(),
         .queries_bf16 = any_flash ? static_cast<uint16_t*>(rounded.data_ptr()) : nullptr,
         .keys = keys.data_ptr(),
         .values = values.data_ptr(),
         .kv = element_},
        Stream());
    at::Tensor out = at::empty({n, heads * d}, On(type_));
    for (size_t r = 0; r < step.ranges.size(); ++r) {
      const cuda::RowRange& range = step.ranges[r];
      if (range.flash) {
        AttendFlash(range, on_device.flash[r], keys, values, rounded, out);
      } else {
        AttendPaged(range, step, on_device, keys, values, queries, out);
      }
    }
    return out;
  }

  // Row by row, as many at once as scratch memory is for.
  void AttendPaged(const cuda::RowRange& range, const cuda::StepInputs& step,
                   const OnDevice& on_device, const at::Tensor& keys, const at::Tensor& values,
                   const at::Tensor& queries, at::Tensor& out) const {
    const int64_t heads = config_.num_heads, d = config_.head_dim;
    const int64_t longest = *std::max_element(step.contexts.begin() + range.first,
                                              step.contexts.begin() + range.first + range.count);
    const int64_t each = cuda::AttentionScratch(1, heads, d, longest);
    const int64_t together = std::clamp<int64_t>(kScratchFloats / each, 1, range.count);
    at::Tensor scratch = at::empty({together * each}, On(at::kFloat));
    for (int64_t first = range.first; first < range.first + range.count; first += together) {
      cuda::RunPagedAttention({.queries = Floats(queries) + first * heads * d,
                               .keys = keys.const_data_ptr(),
                               .values = values.const_data_ptr(),
                               .kv = element_,
                               .block_tables = on_device.block_tables.const_data_ptr<int32_t>(),
                               .sequences = on_device.sequences.const_data_ptr<int32_t>() + first,
                               .contexts = on_device.contexts.const_data_ptr<int32_t>() + first,
                               .rows = std::min(together, range.first + range.count - first),
                               .heads = heads,
                               .kv_heads = config_.num_kv_heads,
                               .head_dim = d,
                               .max_blocks = step.max_blocks,
                               .longest = longest,
                               .scratch = scratch.data_ptr<float>(),
                               .out = static_cast<char*>(out.data_ptr()) +
                                      first * heads * d * cuda::ElementBytes(element_),
                               .element = element_},
                              Stream());
    }
  }

  // Runs of a prompt against their contexts. A causal mask ends at the last query and the last key.
  void AttendFlash(const cuda::RowRange& range, const OnDevice::Flash& flash,
                   const at::Tensor& keys, const at::Tensor& values, const at::Tensor& queries,
                   at::Tensor& out) const {
    const auto tokens = static_cast<int64_t>(range.slots.size());
    at::Tensor context_keys =
        at::empty({tokens, config_.num_kv_heads, config_.head_dim}, On(type_));
    at::Tensor context_values = at::empty_like(context_keys);
    cuda::GatherKv(keys.const_data_ptr(), values.const_data_ptr(), element_,
                   flash.slots.const_data_ptr<int64_t>(), tokens, config_.num_kv_heads,
                   config_.head_dim, context_keys.data_ptr(), context_values.data_ptr(), Stream());
    const at::Tensor attended = std::get<0>(at::_flash_attention_forward(
        queries.narrow(0, range.first, range.count), context_keys, context_values, flash.query_ends,
        flash.key_ends, range.longest_query, range.longest_key, /*dropout_p=*/0.0,
        /*is_causal=*/true,
        /*return_debug_mask=*/false, /*scale=*/1.0));
    out.narrow(0, range.first, range.count).copy_(attended.reshape({range.count, -1}));
  }

  // The rows' logits, [R, V] fp32.
  at::Tensor Head(const CudaWeights& weights, at::Tensor& hidden, const at::Tensor& delta,
                  const at::Tensor* bias, const at::Tensor& rows) const {
    const int64_t n = rows.numel();
    const bool split = element_ == Element::kBf16;
    at::Tensor normed = at::empty({split ? 2 * n : n, config_.hidden_size}, On(type_));
    cuda::RunAddNorm({.hidden = hidden.data_ptr<float>(),
                      .delta = Floats(delta),
                      .bias = bias == nullptr ? nullptr : Floats(*bias),
                      .weight = Floats(weights.final_norm),
                      .eps = static_cast<float>(config_.rms_norm_eps),
                      .chosen = rows.const_data_ptr<int64_t>(),
                      .rows = n,
                      .width = config_.hidden_size,
                      .normed = normed.data_ptr(),
                      .element = element_,
                      .rest = split ? normed.narrow(0, n, n).data_ptr() : nullptr},
                     Stream());
    at::Tensor logits = Multiply(normed, weights.head);
    if (!split) return logits;
    logits.narrow(0, 0, n).add_(logits.narrow(0, n, n));
    return logits.narrow(0, 0, n);
  }

  void HandOut(int64_t first, const at::Tensor& logits, OnLogits on_logits) const {
    const at::Tensor host = logits.to(at::kCPU);  // waits
    const auto width = static_cast<size_t>(config_.vocab_size);
    for (int64_t i = 0; i < host.size(0); ++i) {
      on_logits(first + i, {host.const_data_ptr<float>() + i * config_.vocab_size, width});
    }
  }

  // Those of `draws` that are of these rows. The ones that record more than a kernel does are drawn
  // on the host.
  void Draw(int64_t first, const at::Tensor& logits, std::span<const TokenDraw> draws,
            std::span<absl::StatusOr<SampledToken>> tokens) const;

  Account AccountOf(const CudaWeights& weights, const cuda::StepInputs& step,
                    double num_logits) const {
    const double each = static_cast<double>(cuda::ElementBytes(element_));
    const double head = static_cast<double>(config_.hidden_size * config_.vocab_size);
    const double layers = static_cast<double>(weights.layer_bytes());
    const double head_values = static_cast<double>(config_.num_layers * config_.head_dim);
    Account account;
    account.bytes =
        layers + (num_logits > 0 ? head * each : 0) +
        2 * each * head_values * static_cast<double>(config_.num_kv_heads) * step.kv_read;
    account.flops = 2 * (layers / each) * static_cast<double>(step.ids.size()) +
                    2 * head * num_logits +
                    4 * head_values * static_cast<double>(config_.num_heads) * step.attended;
    return account;
  }

  const ModelConfig config_;
  const DType dtype_;
  const at::ScalarType type_;
  const Element element_;
  const int64_t num_blocks_;
  at::Tensor cache_;        // [2 L, blocks, Hkv, 16, D]: keys and values of each layer
  at::Tensor frequencies_;  // [D / 2] fp32
  Account account_;
};

bool DrawnOnDevice(const SamplingParams& params) {
  return !params.return_support && params.top_logprobs == 0;
}

absl::StatusOr<SampledToken> TokenOf(const cuda::Drawn& drawn) {
  if (drawn.state == cuda::DrawState::kBroken) {
    return absl::InternalError("the model gave a logit that is NaN or +inf, or nothing but -inf");
  }
  if (drawn.state == cuda::DrawState::kNothingLeft)
    return absl::InternalError("no token is left to draw from");
  SampledToken token;
  token.id = drawn.id;
  token.behaviour_logprob = drawn.behaviour_logprob;
  token.raw_logprob = drawn.raw_logprob;
  token.entropy = drawn.entropy;
  token.logprob_second_moment = drawn.logprob_second_moment;
  token.kept_mass = drawn.kept_mass;
  return token;
}

void CudaRunner::Draw(int64_t first, const at::Tensor& logits, std::span<const TokenDraw> draws,
                      std::span<absl::StatusOr<SampledToken>> tokens) const {
  std::vector<cuda::Draw> tasks;
  std::vector<size_t> of_task;
  std::vector<int32_t> forbidden;
  for (size_t i = 0; i < draws.size(); ++i) {
    const TokenDraw& draw = draws[i];
    const int64_t row = draw.logits_row - first;
    if (row < 0 || row >= logits.size(0)) continue;
    if (!DrawnOnDevice(*draw.params)) {
      const at::Tensor host = logits[row].to(at::kCPU);
      tokens[i] =
          DrawOnHost(draw, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())});
      continue;
    }
    tasks.push_back({.seed = draw.params->seed,
                     .index = draw.index,
                     .position = draw.position,
                     .row = static_cast<int32_t>(row),
                     .temperature = draw.params->temperature,
                     .top_k = draw.params->top_k,
                     .top_p = draw.params->top_p,
                     .min_p = draw.params->min_p,
                     .first_forbidden = static_cast<int32_t>(forbidden.size()),
                     .num_forbidden = static_cast<int32_t>(draw.forbidden.size())});
    forbidden.insert(forbidden.end(), draw.forbidden.begin(), draw.forbidden.end());
    of_task.push_back(i);
  }
  const auto size = static_cast<int64_t>(tasks.size());
  if (size == 0) return;
  const at::Tensor on_device = UploadBytes(tasks), banned = Upload(forbidden);
  at::Tensor drawn = at::empty({size * static_cast<int64_t>(sizeof(cuda::Drawn))}, On(at::kByte));
  cuda::DrawTokens(Floats(logits), config_.vocab_size,
                   static_cast<const cuda::Draw*>(on_device.const_data_ptr()), size,
                   banned.numel() == 0 ? nullptr : banned.const_data_ptr<int32_t>(),
                   static_cast<cuda::Drawn*>(drawn.data_ptr()), Stream());
  const at::Tensor host = drawn.to(at::kCPU);  // waits
  for (size_t t = 0; t < of_task.size(); ++t) {
    cuda::Drawn one;
    std::memcpy(&one, host.const_data_ptr<uint8_t>() + t * sizeof(one), sizeof(one));
    tokens[of_task[t]] = TokenOf(one);
  }
}

// Seconds of the fastest of several runs of `work`.
template <typename Work>
double Fastest(const Work& work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    c10::cuda::device_synchronize();
    const auto begin = std::chrono::steady_clock::now();
    work();
    c10::cuda::device_synchronize();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

MachineLimits CudaRunner::MeasureLimits() {
  const c10::InferenceMode inference;
  constexpr int64_t kBytes = int64_t{1} << 29, kSide = 4096;
  at::Tensor from = at::zeros({kBytes}, On(at::kByte)), to = at::zeros({kBytes}, On(at::kByte));
  MachineLimits limits;
  // A copy reads and writes.
  limits.read_bytes_per_second = 2.0 * kBytes / Fastest([&] { to.copy_(from); });
  const double flops = 2.0 * kSide * kSide * kSide;
  const at::Tensor floats = at::randn({kSide, kSide}, On(at::kFloat)),
                   halves = floats.to(at::kBFloat16);
  limits.flops_per_second = flops / Fastest([&] { at::mm(floats, floats); });
  limits.bf16_flops_per_second = flops / Fastest([&] { at::mm(halves, halves); });
  return limits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenRunner>> MakeCudaRunner(const ModelConfig& config,
                                                            ComputeDType dtype,
                                                            int64_t num_blocks) {
  if (c10::cuda::device_count() == 0) {
    return absl::FailedPreconditionError(
        "engine.device is cuda, and this machine has no CUDA device");
  }
  if (config.head_dim > 256 || config.head_dim % 8 != 0 || config.hidden_size % 4 != 0 ||
      config.vocab_size > cuda::kLargestVocabulary) {
    return absl::UnimplementedError(absl::StrCat(
        "a model with head_dim ", config.head_dim, ", hidden size ", config.hidden_size,
        " and vocabulary ", config.vocab_size,
        " on a CUDA device: want head_dim up to 256 and a multiple of 8, a hidden size that is a "
        "multiple of 4, and at most ",
        cuda::kLargestVocabulary, " ids"));
  }
  try {
    return std::unique_ptr<TokenRunner>(std::make_unique<CudaRunner>(config, dtype, num_blocks));
  } catch (const c10::OutOfMemoryError&) {
    return absl::ResourceExhaustedError(absl::StrCat("no device memory for a KV cache of ",
                                                     num_blocks * KvBlockPool::kBlockTokens,
                                                     " tokens: lower engine.kv_capacity_tokens"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the CUDA device: ", error.what()));
  }
}

}  // namespace tandem::rollout
