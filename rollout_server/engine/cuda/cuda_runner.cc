#include "rollout_server/engine/cuda/cuda_runner.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/cuda/kernels.h"
#include "common/tensor/torch_status.h"
#include "rollout_server/engine/cuda/cuda_forward.h"
#include "rollout_server/engine/cuda/cuda_weights.h"
#include "rollout_server/engine/cuda/decode_step.h"
#include "rollout_server/engine/cuda/device_invariance.h"
#include "rollout_server/engine/cuda/device_ops.h"
#include "rollout_server/engine/cuda/draw_kernel.h"
#include "rollout_server/engine/cuda/graph_cache.h"
#include "rollout_server/engine/cuda/step_inputs.h"
#include "rollout_server/engine/model_weights.h"

namespace tandem::rollout {
namespace {

using cuda::kLogitsRows;
using cuda::On;
using tandem::cuda::Element;

constexpr int64_t kFlashTokens = 8;  // shorter runs of prompt attend row by row
constexpr size_t kMostGraphs = 128;

template <typename T>
constexpr at::ScalarType kScalarOf = sizeof(T) == 8 ? at::kLong : at::kInt;

at::Tensor UploadBytes(const void* values, int64_t size, at::ScalarType type) {
  at::Tensor on_device = at::empty({size}, On(type));
  // copy_ reads only, and waits: the source may go.
  on_device.copy_(
      at::from_blob(const_cast<void*>(values), {size}, at::TensorOptions().dtype(type)));
  return on_device;
}

template <typename T>
at::Tensor Upload(const std::vector<T>& values) {
  return UploadBytes(values.data(), static_cast<int64_t>(values.size()), kScalarOf<T>);
}

// Before the first kernel: an upload waits for what the stream has been given.
DeviceInputs ToDevice(const cuda::StepInputs& step) {
  DeviceInputs to;
  to.ids = Upload(step.ids);
  to.positions = Upload(step.positions);
  to.sequences = Upload(step.sequences);
  to.contexts = Upload(step.contexts);
  to.slots = Upload(step.slots);
  to.block_tables = Upload(step.block_tables);
  to.max_blocks = step.max_blocks;
  for (const cuda::RowRange& range : step.ranges) {
    DeviceRange& on_device = to.ranges.emplace_back();
    on_device.first = range.first;
    on_device.count = range.count;
    on_device.flash = range.flash;
    on_device.longest_query = range.longest_query;
    on_device.longest_key = range.longest_key;
    if (!range.flash) continue;
    on_device.query_ends = Upload(range.query_ends);
    on_device.key_ends = Upload(range.key_ends);
    on_device.slots = Upload(range.slots);
  }
  return to;
}

// What graphs read and write: always the same memory.
struct GraphMemory {
  at::Tensor host_inputs, inputs;  // bytes, as DecodeLayout says
  at::Tensor drawn, host_drawn;    // [kMaxGraphRows] Drawn
  at::Tensor kept;                 // [kMaxGraphRows, KeptWords(V)] of draws that record a support

  at::Tensor View(size_t begin, int64_t count, at::ScalarType type) const {
    const auto bytes = count * static_cast<int64_t>(c10::elementSize(type));
    return inputs.narrow(0, static_cast<int64_t>(begin), bytes).view(type);
  }
};

class CudaRunner : public TokenRunner {
 public:
  CudaRunner(const ModelConfig& config, const CudaRunnerOptions& options)
      : config_(config), options_(options), stream_(cuda::StreamOfSteps()), graphs_(kMostGraphs) {
    const c10::InferenceMode inference;
    const c10::StreamGuard on_stream(stream_);
    forward_.emplace(config, options.dtype, options.num_blocks, /*own_products=*/options.invariant);
    if (!options.graphs) return;
    const cuda::DecodeLayout largest =
        cuda::LayoutOf({cuda::kMaxGraphRows, cuda::kMaxGraphChunks, 0});
    const auto bytes = static_cast<int64_t>(largest.bytes);
    const auto drawn = cuda::kMaxGraphRows * static_cast<int64_t>(sizeof(cuda::Drawn));
    memory_ = {cuda::HostBytes(bytes), at::zeros({bytes}, On(at::kByte)),
               at::zeros({drawn}, On(at::kByte)), cuda::HostBytes(drawn),
               at::zeros({cuda::kMaxGraphRows, cuda::KeptWords(config.vocab_size)}, On(at::kInt))};
    cuda::Wait(stream_);
  }

  absl::StatusOr<std::unique_ptr<StagedWeights>> Pack(
      const std::vector<HostTensor>& tensors, std::unique_ptr<StagedWeights> spare) const override;

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
    return OnDevice([&] {
      Forward(static_cast<const CudaWeights&>(weights), inputs, logits_rows,
              [&](int64_t first, const at::Tensor& logits) { HandOut(first, logits, on_logits); });
    });
  }

  absl::Status RunAndDraw(const StagedWeights& packed, std::span<const TokenInput> inputs,
                          std::span<const int64_t> logits_rows, std::span<const TokenDraw> draws,
                          std::span<absl::StatusOr<SampledToken>> tokens) override {
    const auto& weights = static_cast<const CudaWeights&>(packed);
    return OnDevice([&] {
      std::optional<cuda::GraphKey> graph;
      if (options_.graphs) graph = cuda::GraphOf(inputs, logits_rows, draws, weights.place);
      if (graph) return Decode(weights, *graph, inputs, draws, tokens);
      Forward(weights, inputs, logits_rows,
              [&](int64_t first, const at::Tensor& logits) { Draw(first, logits, draws, tokens); });
    });
  }

  void CopyBlocks(std::span<const BlockCopy> copies) override {
    const absl::Status copied = CatchTorch("copy of KV blocks on the CUDA device", [&] {
      const c10::InferenceMode inference;
      const c10::StreamGuard on_stream(stream_);
      for (const BlockCopy& copy : copies) forward_->CopyBlock(copy.from, copy.to);
    });
    failed_copy_.Update(copied);  // the next step tells it
  }

  Account account() const override { return account_; }
  MachineLimits MeasureLimits() override;
  std::string kernels() const override { return absl::StrCat("cuda ", cuda::DeviceName()); }

  Element element() const { return forward_->element(); }

 private:
  template <typename Work>
  absl::Status OnDevice(const Work& work) {
    TANDEM_RETURN_IF_ERROR(failed_copy_);
    return CatchTorch("forward on the CUDA device", [&] {
      const c10::InferenceMode inference;
      const c10::StreamGuard on_stream(stream_);
      work();
      cuda::Wait(stream_);
      if (const char* const error = tandem::cuda::KernelError())
        TORCH_CHECK(false, "a kernel failed: ", error);
    });
  }

  // Calls on_logits(first row, logits [<= kLogitsRows, V]) for slices of the rows.
  template <typename OnSlice>
  void Forward(const CudaWeights& weights, std::span<const TokenInput> inputs,
               std::span<const int64_t> logits_rows, const OnSlice& on_slice) {
    const bool flash = element() == Element::kBf16 && !options_.invariant;
    const cuda::StepInputs step = cuda::LayOut(inputs, flash ? kFlashTokens : 0);
    const auto total = static_cast<int64_t>(logits_rows.size());
    account_ = AccountOf(weights, static_cast<double>(inputs.size()), static_cast<double>(total),
                         step.attended, step.kv_read);
    const DeviceInputs on_device = ToDevice(step);
    const at::Tensor rows = UploadBytes(logits_rows.data(), total, at::kLong);
    CudaForward::Residual residual = forward_->Layers(weights, on_device);
    for (int64_t first = 0; first < total; first += kLogitsRows) {
      const int64_t count = std::min(kLogitsRows, total - first);
      on_slice(first, forward_->Logits(weights, residual, rows.narrow(0, first, count)));
    }
  }

  // A step that has a graph: as it comes the first time, and recorded; played after that.
  void Decode(const CudaWeights& weights, const cuda::GraphKey& key,
              std::span<const TokenInput> inputs, std::span<const TokenDraw> draws,
              std::span<absl::StatusOr<SampledToken>> tokens);
  // What a graph records.
  void PaddedStep(const CudaWeights& weights, const cuda::GraphKey& key) const;
  std::unique_ptr<cuda::DeviceGraph> Record(const CudaWeights& weights,
                                            const cuda::GraphKey& key) const;

  void HandOut(int64_t first, const at::Tensor& logits, OnLogits on_logits) const {
    const at::Tensor host = logits.to(at::kCPU);  // waits
    const auto width = static_cast<size_t>(config_.vocab_size);
    for (int64_t i = 0; i < host.size(0); ++i) {
      on_logits(first + i, {host.const_data_ptr<float>() + i * config_.vocab_size, width});
    }
  }

  // Those of `draws` that are of these rows. The most likely ids are found on the host.
  void Draw(int64_t first, const at::Tensor& logits, std::span<const TokenDraw> draws,
            std::span<absl::StatusOr<SampledToken>> tokens) const;

  Account AccountOf(const CudaWeights& weights, double rows, double num_logits, double attended,
                    double kv_read) const {
    const double each = static_cast<double>(tandem::cuda::ElementBytes(element()));
    const double head = static_cast<double>(config_.hidden_size * config_.vocab_size);
    const double layers = static_cast<double>(weights.layer_bytes());
    const double head_values = static_cast<double>(config_.num_layers * config_.head_dim);
    Account account;
    account.bytes = layers + (num_logits > 0 ? head * each : 0) +
                    2 * each * head_values * static_cast<double>(config_.num_kv_heads) * kv_read;
    account.flops = 2 * (layers / each) * rows + 2 * head * num_logits +
                    4 * head_values * static_cast<double>(config_.num_heads) * attended;
    return account;
  }

  const ModelConfig config_;
  const CudaRunnerOptions options_;
  const c10::Stream stream_;
  std::optional<CudaForward> forward_;  // made on the stream
  GraphMemory memory_;
  cuda::GraphCache<cuda::DeviceGraph> graphs_;  // read memory_ and forward_
  Account account_;
  absl::Status failed_copy_;
};

absl::StatusOr<std::unique_ptr<StagedWeights>> CudaRunner::Pack(
    const std::vector<HostTensor>& tensors, std::unique_ptr<StagedWeights> spare) const {
  const DType dtype = options_.dtype == ComputeDType::kBf16 ? DType::kBF16 : DType::kF32;
  TANDEM_RETURN_IF_ERROR(CheckModelTensors(config_, tensors, dtype));
  std::unique_ptr<CudaWeights> place(static_cast<CudaWeights*>(spare.release()));
  try {
    return std::unique_ptr<StagedWeights>(UploadWeights(config_, tensors, dtype, std::move(place)));
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no device memory for weights: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("weights to the device: ", error.what()));
  }
}

// Errors as SampleToken's.
absl::StatusOr<SampledToken> TokenOf(const cuda::Drawn& drawn) {
  if (drawn.state == cuda::DrawState::kBroken) {
    return absl::DataLossError("the model gave a logit that is NaN or +inf, or nothing but -inf");
  }
  if (drawn.state == cuda::DrawState::kNothingLeft)
    return absl::FailedPreconditionError("no token is left to draw from");
  SampledToken token;
  token.id = drawn.id;
  token.behaviour_logprob = drawn.behaviour_logprob;
  token.raw_logprob = drawn.raw_logprob;
  token.entropy = drawn.entropy;
  token.logprob_second_moment = drawn.logprob_second_moment;
  token.kept_mass = drawn.kept_mass;
  return token;
}

uint32_t* KeptOf(const at::Tensor& kept) {
  return kept.defined() ? static_cast<uint32_t*>(kept.data_ptr()) : nullptr;
}

// Draw i of a call; row i of `host_kept` has its support, where it records one.
absl::StatusOr<SampledToken> TokenAt(const at::Tensor& host_drawn, const at::Tensor& host_kept,
                                     size_t i, const TokenDraw& draw) {
  cuda::Drawn one;
  std::memcpy(&one, host_drawn.const_data_ptr<uint8_t>() + i * sizeof(one), sizeof(one));
  TANDEM_ASSIGN_OR_RETURN(SampledToken token, TokenOf(one));
  if (cuda::RecordsSupport(*draw.params)) {
    const auto words = static_cast<size_t>(host_kept.size(1));
    token.support = cuda::KeptIds({KeptOf(host_kept) + i * words, words});
  }
  return token;
}

bool RecordsSupport(const TokenDraw& draw) { return cuda::RecordsSupport(*draw.params); }

void CudaRunner::PaddedStep(const CudaWeights& weights, const cuda::GraphKey& key) const {
  const cuda::DecodeLayout layout = cuda::LayoutOf(key);
  DeviceInputs inputs;
  inputs.ids = memory_.View(layout.ids, key.rows, at::kInt);
  inputs.positions = memory_.View(layout.positions, key.rows, at::kInt);
  inputs.sequences = memory_.View(layout.sequences, key.rows, at::kInt);
  inputs.contexts = memory_.View(layout.contexts, key.rows, at::kInt);
  inputs.slots = memory_.View(layout.slots, key.rows, at::kLong);
  inputs.max_blocks = layout.max_blocks;
  inputs.block_tables = memory_.View(layout.block_tables, key.rows * layout.max_blocks, at::kInt);
  inputs.ranges.push_back({.first = 0,
                           .count = key.rows,
                           .longest_query = 1,
                           .longest_key = key.chunks * tandem::cuda::kAttentionChunk});
  const at::Tensor rows = memory_.View(layout.logits_rows, key.rows, at::kLong);
  const auto* const base = memory_.inputs.const_data_ptr<uint8_t>();
  const auto* const draws = reinterpret_cast<const cuda::Draw*>(base + layout.draws);
  const auto* const forbidden = reinterpret_cast<const int32_t*>(base + layout.forbidden);
  auto* const drawn = static_cast<cuda::Drawn*>(memory_.drawn.data_ptr());
  CudaForward::Residual residual = forward_->Layers(weights, inputs);
  for (int64_t first = 0; first < key.rows; first += kLogitsRows) {
    const int64_t count = std::min(kLogitsRows, key.rows - first);
    const at::Tensor logits = forward_->Logits(weights, residual, rows.narrow(0, first, count));
    cuda::DrawTokens(logits.const_data_ptr<float>(), config_.vocab_size, draws + first, count,
                     forbidden, drawn + first, KeptOf(memory_.kept), cuda::CurrentStream());
  }
}

std::unique_ptr<cuda::DeviceGraph> CudaRunner::Record(const CudaWeights& weights,
                                                      const cuda::GraphKey& key) const {
  try {
    return std::make_unique<cuda::DeviceGraph>([this, &weights, key] { PaddedStep(weights, key); },
                                               graphs_.Any());
  } catch (const std::exception& error) {
    throw std::runtime_error(
        absl::StrCat("no CUDA graph of ", key.rows,
                     " rows (server.engine.cuda_graphs: false does without): ", error.what()));
  }
}

void CudaRunner::Decode(const CudaWeights& weights, const cuda::GraphKey& key,
                        std::span<const TokenInput> inputs, std::span<const TokenDraw> draws,
                        std::span<absl::StatusOr<SampledToken>> tokens) {
  double attended = 0;
  for (const TokenInput& input : inputs) attended += input.position + 1;
  const auto rows = static_cast<double>(inputs.size());
  account_ = AccountOf(weights, rows, rows, attended, attended);
  const size_t bytes = cuda::LayoutOf(key).bytes;
  cuda::Fill(key, inputs, draws, {static_cast<std::byte*>(memory_.host_inputs.data_ptr()), bytes});
  const auto size = static_cast<int64_t>(bytes);
  memory_.inputs.narrow(0, 0, size)
      .copy_(memory_.host_inputs.narrow(0, 0, size),
             /*non_blocking=*/true);
  if (cuda::DeviceGraph* const graph = graphs_.Find(key)) {
    graph->Replay();
  } else {
    PaddedStep(weights, key);
    graphs_.Add(key, Record(weights, key));
  }
  memory_.host_drawn.copy_(memory_.drawn, /*non_blocking=*/true);
  at::Tensor kept;
  if (std::ranges::any_of(draws, RecordsSupport)) {
    kept = memory_.kept.narrow(0, 0, static_cast<int64_t>(draws.size())).to(at::kCPU);
  }
  cuda::Wait(stream_);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = TokenAt(memory_.host_drawn, kept, i, draws[i]);
  }
}

// The most likely ids, with log-probs of the host's sums, to a token drawn on the device.
void AddTop(const TokenDraw& draw, const at::Tensor& logits, absl::StatusOr<SampledToken>& token) {
  if (draw.params->top_logprobs == 0 || !token.ok()) return;
  const at::Tensor host = logits.to(at::kCPU);
  absl::StatusOr<SampledToken> of_host =
      DrawOnHost(draw, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())});
  if (of_host.ok()) {
    token->top = std::move(of_host->top);
  } else {
    token = of_host.status();
  }
}

void CudaRunner::Draw(int64_t first, const at::Tensor& logits, std::span<const TokenDraw> draws,
                      std::span<absl::StatusOr<SampledToken>> tokens) const {
  std::vector<cuda::Draw> tasks;
  std::vector<size_t> of_task;
  std::vector<int32_t> forbidden;
  bool supports = false;
  for (size_t i = 0; i < draws.size(); ++i) {
    const TokenDraw& draw = draws[i];
    const int64_t row = draw.logits_row - first;
    if (row < 0 || row >= logits.size(0)) continue;
    const auto task = static_cast<int64_t>(tasks.size());
    tasks.push_back(cuda::AsDraw(draw, row, forbidden.size(), task));
    forbidden.insert(forbidden.end(), draw.forbidden.begin(), draw.forbidden.end());
    of_task.push_back(i);
    supports = supports || RecordsSupport(draw);
  }
  const auto size = static_cast<int64_t>(tasks.size());
  if (size == 0) return;
  const at::Tensor on_device =
      UploadBytes(tasks.data(), size * static_cast<int64_t>(sizeof(cuda::Draw)), at::kByte);
  const at::Tensor banned = Upload(forbidden);
  at::Tensor drawn = at::empty({size * static_cast<int64_t>(sizeof(cuda::Drawn))}, On(at::kByte));
  at::Tensor kept;
  if (supports) kept = at::empty({size, cuda::KeptWords(config_.vocab_size)}, On(at::kInt));
  cuda::DrawTokens(logits.const_data_ptr<float>(), config_.vocab_size,
                   static_cast<const cuda::Draw*>(on_device.const_data_ptr()), size,
                   banned.numel() == 0 ? nullptr : banned.const_data_ptr<int32_t>(),
                   static_cast<cuda::Drawn*>(drawn.data_ptr()), KeptOf(kept),
                   cuda::CurrentStream());
  const at::Tensor host = drawn.to(at::kCPU);  // waits
  if (supports) kept = kept.to(at::kCPU);
  for (size_t t = 0; t < of_task.size(); ++t) {
    const TokenDraw& draw = draws[of_task[t]];
    absl::StatusOr<SampledToken>& token = tokens[of_task[t]];
    token = TokenAt(host, kept, t, draw);
    AddTop(draw, logits[draw.logits_row - first], token);
  }
}

// Seconds of the fastest of several runs of `work`, all of it on the stream.
template <typename Work>
double Fastest(const c10::Stream& stream, const Work& work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    cuda::Wait(stream);
    const auto begin = std::chrono::steady_clock::now();
    work();
    cuda::Wait(stream);
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

MachineLimits CudaRunner::MeasureLimits() {
  const c10::InferenceMode inference;
  const c10::StreamGuard on_stream(stream_);
  constexpr int64_t kBytes = int64_t{1} << 29, kSide = 4096;
  at::Tensor from = at::zeros({kBytes}, On(at::kByte)), to = at::zeros({kBytes}, On(at::kByte));
  MachineLimits limits;
  // A copy reads and writes.
  limits.read_bytes_per_second = 2.0 * kBytes / Fastest(stream_, [&] { to.copy_(from); });
  const double flops = 2.0 * kSide * kSide * kSide;
  const at::Tensor floats = at::randn({kSide, kSide}, On(at::kFloat)),
                   halves = floats.to(at::kBFloat16);
  limits.flops_per_second = flops / Fastest(stream_, [&] { at::mm(floats, floats); });
  limits.bf16_flops_per_second = flops / Fastest(stream_, [&] { at::mm(halves, halves); });
  return limits;
}

absl::Status CheckShapes(const ModelConfig& config, bool invariant) {
  if (config.head_dim > 256 || config.head_dim % 8 != 0 || config.hidden_size % 4 != 0 ||
      config.vocab_size > cuda::kLargestVocabulary) {
    return absl::UnimplementedError(absl::StrCat(
        "a model with head_dim ", config.head_dim, ", hidden size ", config.hidden_size,
        " and vocabulary ", config.vocab_size,
        " on a CUDA device: want head_dim up to 256 and a multiple of 8, a hidden size that is a "
        "multiple of 4, and at most ",
        cuda::kLargestVocabulary, " ids"));
  }
  if (invariant && (config.hidden_size % 8 != 0 || config.intermediate_size % 8 != 0)) {
    return absl::UnimplementedError(absl::StrCat(
        "numerics invariant on a CUDA device for a model with hidden size ", config.hidden_size,
        " and intermediate size ", config.intermediate_size, ": want multiples of 8"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenRunner>> MakeCudaRunner(const ModelConfig& config,
                                                            const CudaRunnerOptions& options) {
  if (cuda::DeviceCount() == 0) {
    return absl::FailedPreconditionError(
        "engine.device is cuda, and this machine has no CUDA device");
  }
  TANDEM_RETURN_IF_ERROR(CheckShapes(config, options.invariant));
  try {
    auto runner = std::make_unique<CudaRunner>(config, options);
    if (options.invariant) {
      TANDEM_RETURN_IF_ERROR(CheckDeviceInvariance(config, runner->element()));
    }
    return std::unique_ptr<TokenRunner>(std::move(runner));
  } catch (const c10::OutOfMemoryError&) {
    return absl::ResourceExhaustedError(absl::StrCat("no device memory for a KV cache of ",
                                                     options.num_blocks * KvBlockPool::kBlockTokens,
                                                     " tokens: lower engine.kv_capacity_tokens"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the CUDA device: ", error.what()));
  }
}

}  // namespace tandem::rollout
