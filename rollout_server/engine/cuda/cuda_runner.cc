#include "rollout_server/engine/cuda/cuda_runner.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/cuda/kernels.h"
#include "common/tensor/machine_limits.h"
#include "common/tensor/torch_status.h"
#include "rollout_server/engine/cuda/cuda_arrival.h"
#include "rollout_server/engine/cuda/cuda_forward.h"
#include "rollout_server/engine/cuda/cuda_weights.h"
#include "rollout_server/engine/cuda/device_checks.h"
#include "rollout_server/engine/cuda/device_draws.h"
#include "rollout_server/engine/cuda/device_ops.h"
#include "rollout_server/engine/cuda/draw/draw_kernel.h"
#include "rollout_server/engine/cuda/step/decode_step.h"
#include "rollout_server/engine/cuda/step/graph_cache.h"
#include "rollout_server/engine/cuda/step/packed_inputs.h"
#include "rollout_server/engine/cuda/step/step_inputs.h"
#include "rollout_server/engine/forward/model_weights.h"

namespace tandem::rollout {
namespace {

using cuda::kLogitsRows;
using cuda::On;
using tandem::cuda::Element;

constexpr int64_t kFlashTokens = 8;  // shorter runs of prompt tokens use paged attention

at::Tensor View(const at::Tensor& bytes, size_t begin, int64_t count, at::ScalarType type) {
  const auto size = count * static_cast<int64_t>(c10::elementSize(type));
  return bytes.narrow(0, static_cast<int64_t>(begin), size).view(type);
}

// `values` on the device, where `bytes` has what was packed.
template <typename T>
at::Tensor View(const at::Tensor& bytes, const cuda::PackedInputs& packed,
                const std::vector<T>& values) {
  return View(bytes, packed.At(values), static_cast<int64_t>(values.size()),
              sizeof(T) == 8 ? at::kLong : at::kInt);
}

DeviceInputs ViewsOf(const cuda::StepInputs& step, const cuda::PackedInputs& packed,
                     const at::Tensor& bytes) {
  DeviceInputs to;
  to.ids = View(bytes, packed, step.ids);
  to.positions = View(bytes, packed, step.positions);
  to.sequences = View(bytes, packed, step.sequences);
  to.contexts = View(bytes, packed, step.contexts);
  to.slots = View(bytes, packed, step.slots);
  to.block_tables = View(bytes, packed, step.block_tables);
  to.max_blocks = step.max_blocks;
  for (const cuda::RowRange& range : step.ranges) {
    DeviceRange& on_device = to.ranges.emplace_back();
    on_device.first = range.first;
    on_device.count = range.count;
    on_device.flash = range.flash;
    on_device.longest_query = range.longest_query;
    on_device.longest_key = range.longest_key;
    if (!range.flash) continue;
    on_device.query_ends = View(bytes, packed, range.query_ends);
    on_device.key_ends = View(bytes, packed, range.key_ends);
    on_device.slots = View(bytes, packed, range.slots);
  }
  return to;
}

// Draws or scores of a step, in the form that the kernels read.
struct DrawInputs {
  std::vector<cuda::Draw>
      draws;                  // in order of their rows; Draw::row counts within a slice of logits
  std::vector<int64_t> rows;  // of each, as an index into the call's logits_rows
  cuda::ForbiddenWords forbidden;
};

DrawInputs InputsOf(std::span<const TokenDraw> draws) {
  DrawInputs in;
  for (const TokenDraw& draw : draws) {
    const auto kept_row = static_cast<int64_t>(in.draws.size());
    in.draws.push_back(cuda::AsDraw(draw, draw.logits_row % kLogitsRows, kept_row, in.forbidden));
    in.rows.push_back(draw.logits_row);
  }
  return in;
}

DrawInputs InputsOf(std::span<const int32_t> scored_ids, const ScoreOptions& options) {
  DrawInputs in;
  for (const int32_t id : scored_ids) {
    const auto row = static_cast<int64_t>(in.draws.size());
    in.draws.push_back({.row = static_cast<int32_t>(row % kLogitsRows),
                        .temperature = options.temperature,
                        .top_k = options.top_k,
                        .top_p = options.top_p,
                        .min_p = options.min_p,
                        .scored_id = id});
    in.rows.push_back(row);
  }
  return in;
}

absl::Status NoRounding() {
  return absl::UnimplementedError(
      "rounding at sites of the forward on a CUDA device: use device cpu");
}

// Is it the message of a c10::OutOfMemoryError, or of the CUDA run time, whose failures are plain
// c10::Errors?
bool OutOfMemory(absl::string_view message) { return absl::StrContains(message, "out of memory"); }

absl::Status NoMemoryForWeights(const c10::OutOfMemoryError& error) {
  return ResourceExhausted("no device memory for weights: ", error.what_without_backtrace());
}

// The memory that all graphs read and write.
struct GraphMemory {
  at::Tensor host_inputs, inputs;  // bytes, in the layout of DecodeLayout
  cuda::DrawMemory draws;          // for kMaxGraphRows draws with everything but scores
  at::Tensor host_drawn;           // pinned; draws.drawn
};

class CudaRunner : public TokenRunner {
 public:
  CudaRunner(const ModelConfig& config, const EngineOptions& options)
      : config_(config),
        options_(options),
        stream_(cuda::StreamOfSteps()),
        graphs_(cuda::kMostGraphs) {
    const c10::InferenceMode inference;
    const c10::StreamGuard on_stream(stream_);
    forward_.emplace(config, options.dtype, options.num_blocks(), /*own_products=*/invariant());
    if (!options.cuda_graphs) return;
    const cuda::DecodeLayout largest =
        cuda::LayoutOf({cuda::kMaxGraphRows, cuda::kMaxGraphChunks, 0});
    const auto bytes = static_cast<int64_t>(largest.bytes);
    const auto drawn = cuda::kMaxGraphRows * static_cast<int64_t>(sizeof(cuda::Drawn));
    const cuda::DrawWants all = {.supports = true, .tops = true};
    memory_ = {cuda::HostBytes(bytes), at::zeros({bytes}, On(at::kByte)),
               cuda::MakeDrawMemory(cuda::kMaxGraphRows, config.vocab_size, all),
               cuda::HostBytes(drawn)};
    cuda::Wait(stream_);
  }

  absl::StatusOr<std::unique_ptr<StagedWeights>> Pack(
      const std::vector<HostTensor>& tensors, std::unique_ptr<StagedWeights> spare) const override {
    const DType dtype = options_.weight_dtype();
    TANDEM_RETURN_IF_ERROR(CheckModelTensors(config_, tensors, dtype, {}));
    std::unique_ptr<CudaWeights> place(static_cast<CudaWeights*>(spare.release()));
    try {
      return std::unique_ptr<StagedWeights>(
          UploadWeights(config_, tensors, dtype, std::move(place)));
    } catch (const c10::OutOfMemoryError& error) {
      return NoMemoryForWeights(error);
    } catch (const std::exception& error) {
      return Internal("weights to the device: ", error.what());
    }
  }

  bool Packed(const StagedWeights* weights) const override {
    return dynamic_cast<const CudaWeights*>(weights) != nullptr;
  }

  std::optional<Device> arrival_memory() const override { return cuda::kMemory; }

  absl::StatusOr<std::unique_ptr<ArrivingWeights>> Arrive(
      std::unique_ptr<StagedWeights> spare, CudaArrival::GiveBack give_back) const override {
    std::unique_ptr<CudaWeights> place(static_cast<CudaWeights*>(spare.release()));
    try {
      return std::make_unique<CudaArrival>(config_, options_.weight_dtype(), std::move(place),
                                           std::move(give_back));
    } catch (const c10::OutOfMemoryError& error) {
      return NoMemoryForWeights(error);
    } catch (const std::exception& error) {
      return Internal("a place for weights: ", error.what());
    }
  }

  absl::Status Run(const StagedWeights& weights, std::span<const TokenInput> inputs,
                   std::span<const int64_t> logits_rows, OnLogits on_logits,
                   const ForwardArithmetic& arithmetic) override {
    if (!(arithmetic == ForwardArithmetic{})) return NoRounding();
    return OnDevice([&] {
      Forward(static_cast<const CudaWeights&>(weights), inputs, logits_rows, {},
              [&](int64_t first, const at::Tensor& logits, const cuda::Draw*, const int32_t*) {
                HandOut(first, logits, on_logits);
              });
    });
  }

  absl::Status RunAndDraw(const StagedWeights& packed, const PlanInputs& in,
                          std::span<absl::StatusOr<SampledToken>> tokens) override {
    const auto& weights = static_cast<const CudaWeights&>(packed);
    const auto& [inputs, logits_rows, sequences, draws] = in;
    return OnDevice([&] {
      std::optional<cuda::GraphKey> graph;
      if (options_.cuda_graphs) graph = cuda::GraphOf(inputs, logits_rows, draws, weights.place);
      if (graph) return Decode(weights, *graph, inputs, draws, tokens);
      const cuda::DrawMemory host =
          Draw(weights, inputs, logits_rows, InputsOf(draws), cuda::WantsOf(draws));
      for (size_t i = 0; i < draws.size(); ++i) tokens[i] = cuda::TokenAt(host, i, draws[i]);
    });
  }

  absl::Status RunAndScore(const StagedWeights& weights, std::span<const TokenInput> inputs,
                           std::span<const int64_t> logits_rows, std::span<const int32_t> ids,
                           const ScoreOptions& options,
                           std::span<absl::StatusOr<ScoredToken>> tokens) override {
    if (!(options.arithmetic == ForwardArithmetic{})) return NoRounding();
    if (options.top_logprobs > 0) {  // the device's scores have none
      return TokenRunner::RunAndScore(weights, inputs, logits_rows, ids, options, tokens);
    }
    return OnDevice([&] {
      const cuda::DrawMemory host = Draw(static_cast<const CudaWeights&>(weights), inputs,
                                         logits_rows, InputsOf(ids, options), {.scores = true});
      for (size_t i = 0; i < ids.size(); ++i) tokens[i] = cuda::ScoreAt(host, i);
    });
  }

  // Runs steps of padded rows, which write no KV and sample nothing, but need the memory of real
  // ones.
  absl::Status Rehearse(const StagedWeights& packed, int64_t max_step_tokens,
                        int64_t max_sequences) override {
    const auto& weights = static_cast<const CudaWeights&>(packed);
    const int64_t longest = std::min(config_.max_position_embeddings, options_.kv_capacity_tokens);
    const absl::Status run = OnDevice([&] {
      // The number of rows of logits that PlanMemory counts.
      const int64_t rows = std::max(max_sequences, std::min(max_step_tokens, kLogitsRows));
      PromptStep(weights, max_step_tokens, rows, longest);
      if (!options_.cuda_graphs) return;
      const int64_t padded = cuda::PaddedRows(std::min(max_sequences, cuda::kMaxGraphRows));
      const int64_t chunks = std::min(cuda::PaddedChunks(longest), cuda::kMaxGraphChunks);
      Decode(weights, {padded, chunks, weights.place}, {}, {}, {});
    });
    if (run.ok() || !OutOfMemory(run.message())) return run;
    return ResourceExhausted("the largest step of engine.max_step_tokens ", max_step_tokens,
                             " does not fit beside a KV cache of ", options_.kv_capacity_tokens,
                             " tokens: lower one of them. ", run.message());
  }

  void CopyBlocks(std::span<const BlockCopy> copies) override {
    if (copies.empty()) return;
    const absl::Status copied = CatchTorch("copy of KV blocks on the CUDA device", [&] {
      const c10::InferenceMode inference;
      const c10::StreamGuard on_stream(stream_);
      forward_->CopyBlocks(copies);
    });
    failed_copy_.Update(copied);  // returned by the next step
  }

  MachineWork account() const override { return account_; }
  absl::StatusOr<MachineLimits> MeasureLimits() override {
    const absl::StatusOr<MachineLimits> limits =
        CatchTorch("measurement of the CUDA device", [&] { return cuda::MeasureLimits(stream_); });
    if (limits.ok() || !OutOfMemory(limits.status().message())) return limits;
    return absl::ResourceExhaustedError(limits.status().message());
  }
  std::string kernels() const override { return kernels_; }

  Element element() const { return forward_->element(); }
  // A row's bits do not depend on the batch.
  bool invariant() const { return options_.numerics != Numerics::kFast; }

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

  bool flash() const { return element() == Element::kBf16 && !invariant(); }

  // Sends all arrays in one copy from pinned memory. The next step overwrites that memory, after
  // this step has waited for the stream.
  at::Tensor Send(const cuda::PackedInputs& packed) {
    const auto bytes = static_cast<int64_t>(packed.bytes());
    if (!host_step_.defined() || host_step_.numel() < bytes) {
      host_step_ = cuda::HostBytes(static_cast<int64_t>(std::bit_ceil(packed.bytes())));
    }
    packed.Write(static_cast<std::byte*>(host_step_.data_ptr()));
    at::Tensor on_device = at::empty({bytes}, On(at::kByte));
    on_device.copy_(host_step_.narrow(0, 0, bytes), /*non_blocking=*/true);
    return on_device;
  }

  // Calls on_slice(first row, logits [<= kLogitsRows, V], draws, forbidden ids) for each slice of
  // the rows. The last two are device pointers to those of the whole call.
  template <typename OnSlice>
  void Forward(const CudaWeights& weights, std::span<const TokenInput> inputs,
               std::span<const int64_t> logits_rows, const DrawInputs& draws,
               const OnSlice& on_slice) {
    const cuda::StepInputs step = cuda::LayOut(inputs, flash() ? kFlashTokens : 0);
    const std::vector<int64_t> chosen(logits_rows.begin(), logits_rows.end());
    const auto total = static_cast<int64_t>(chosen.size());
    account_ = AccountOf(weights, static_cast<double>(inputs.size()), static_cast<double>(total),
                         step.attended, step.kv_read);
    cuda::PackedInputs packed;
    cuda::Pack(step, packed);
    packed.Add(chosen);
    const size_t draws_at = packed.Add(draws.draws);
    const size_t forbidden_at = packed.Add(draws.forbidden.words());
    const at::Tensor bytes = Send(packed);
    const auto* const base = bytes.const_data_ptr<uint8_t>();
    const at::Tensor rows = View(bytes, packed, chosen);
    CudaForward::Residual residual = forward_->Layers(weights, ViewsOf(step, packed, bytes));
    for (int64_t first = 0; first < total; first += kLogitsRows) {
      const int64_t count = std::min(kLogitsRows, total - first);
      on_slice(first, forward_->Logits(weights, residual, rows.narrow(0, first, count)),
               reinterpret_cast<const cuda::Draw*>(base + draws_at),
               reinterpret_cast<const int32_t*>(base + forbidden_at));
    }
  }

  // Runs the forward and samples; returns the records of all draws on the host.
  cuda::DrawMemory Draw(const CudaWeights& weights, std::span<const TokenInput> inputs,
                        std::span<const int64_t> logits_rows, const DrawInputs& draws,
                        const cuda::DrawWants& wants) {
    const auto size = static_cast<int64_t>(draws.draws.size());
    const cuda::DrawMemory memory = cuda::MakeDrawMemory(size, config_.vocab_size, wants);
    Forward(weights, inputs, logits_rows, draws,
            [&](int64_t first_row, const at::Tensor& logits, const cuda::Draw* on_device,
                const int32_t* forbidden) {
              const auto from = std::ranges::lower_bound(draws.rows, first_row);
              const auto to = std::ranges::lower_bound(draws.rows, first_row + logits.size(0));
              cuda::DrawTokens(cuda::TaskOf(memory, logits, on_device, forbidden,
                                            from - draws.rows.begin(), to - from),
                               cuda::CurrentStream());
            });
    return cuda::Fetch(memory, size, wants);
  }

  // A step that has a graph. The first time it runs without and is then recorded; later it is
  // replayed.
  void Decode(const CudaWeights& weights, const cuda::GraphKey& key,
              std::span<const TokenInput> inputs, std::span<const TokenDraw> draws,
              std::span<absl::StatusOr<SampledToken>> tokens) {
    double attended = 0;
    for (const TokenInput& input : inputs) attended += input.position + 1;
    const auto rows = static_cast<double>(inputs.size());
    account_ = AccountOf(weights, rows, rows, attended, attended);
    const size_t bytes = cuda::LayoutOf(key).bytes;
    cuda::Fill(key, inputs, draws,
               {static_cast<std::byte*>(memory_.host_inputs.data_ptr()), bytes});
    const auto size = static_cast<int64_t>(bytes);
    memory_.inputs.narrow(0, 0, size)
        .copy_(memory_.host_inputs.narrow(0, 0, size),
               /*non_blocking=*/true);
    if (cuda::DeviceGraph* const graph = graphs_.Find(key)) {
      graph->Replay();
    } else {
      PaddedStep(weights, key);
      std::unique_ptr<cuda::DeviceGraph> recorded;
      if (room_for_graphs_) recorded = Record(weights, key);
      if (recorded) graphs_.Add(key, std::move(recorded));
    }
    memory_.host_drawn.copy_(memory_.draws.drawn, /*non_blocking=*/true);
    cuda::DrawMemory host =
        cuda::FetchWanted(memory_.draws, static_cast<int64_t>(draws.size()), cuda::WantsOf(draws));
    cuda::Wait(stream_);
    host.drawn = memory_.host_drawn;
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = cuda::TokenAt(host, i, draws[i]);
  }

  // The operations that a graph records.
  void PaddedStep(const CudaWeights& weights, const cuda::GraphKey& key) const {
    const cuda::DecodeLayout layout = cuda::LayoutOf(key);
    DeviceInputs inputs;
    const at::Tensor& bytes = memory_.inputs;
    inputs.ids = View(bytes, layout.ids, key.rows, at::kInt);
    inputs.positions = View(bytes, layout.positions, key.rows, at::kInt);
    inputs.sequences = View(bytes, layout.sequences, key.rows, at::kInt);
    inputs.contexts = View(bytes, layout.contexts, key.rows, at::kInt);
    inputs.slots = View(bytes, layout.slots, key.rows, at::kLong);
    inputs.max_blocks = layout.max_blocks;
    inputs.block_tables = View(bytes, layout.block_tables, key.rows * layout.max_blocks, at::kInt);
    inputs.ranges.push_back({.first = 0,
                             .count = key.rows,
                             .longest_query = 1,
                             .longest_key = key.chunks * tandem::cuda::kAttentionChunk});
    const at::Tensor rows = View(bytes, layout.logits_rows, key.rows, at::kLong);
    const auto* const base = memory_.inputs.const_data_ptr<uint8_t>();
    const auto* const draws = reinterpret_cast<const cuda::Draw*>(base + layout.draws);
    const auto* const forbidden = reinterpret_cast<const int32_t*>(base + layout.forbidden);
    CudaForward::Residual residual = forward_->Layers(weights, inputs);
    for (int64_t first = 0; first < key.rows; first += kLogitsRows) {
      const int64_t count = std::min(kLogitsRows, key.rows - first);
      const at::Tensor logits = forward_->Logits(weights, residual, rows.narrow(0, first, count));
      cuda::DrawTokens(cuda::TaskOf(memory_.draws, logits, draws, forbidden, first, count),
                       cuda::CurrentStream());
    }
  }

  // Null when the device has no memory for one more graph. Steps of this key then run without one.
  std::unique_ptr<cuda::DeviceGraph> Record(const CudaWeights& weights, const cuda::GraphKey& key) {
    try {
      return std::make_unique<cuda::DeviceGraph>(
          [this, &weights, key] { PaddedStep(weights, key); }, graphs_.Any());
    } catch (const std::exception& error) {
      if (OutOfMemory(error.what())) {
        room_for_graphs_ = false;
        log::Warning(
            "no device memory for another CUDA graph: further kinds of steps run without one",
            {{"graphs", graphs_.size()}, {"rows", key.rows}});
        return nullptr;
      }
      throw std::runtime_error(
          absl::StrCat("no CUDA graph of ", key.rows,
                       " rows (server.engine.cuda_graphs: false does without): ", error.what()));
    }
  }

  // A step of `tokens` padded rows as one long run, with logits, records and supports of up to
  // `rows`.
  void PromptStep(const CudaWeights& weights, int64_t tokens, int64_t rows, int64_t longest) {
    const auto zeros = [](int64_t size, at::ScalarType type) {
      return at::zeros({size}, On(type));
    };
    DeviceInputs inputs;
    inputs.ids = inputs.positions = inputs.sequences = inputs.contexts = zeros(tokens, at::kInt);
    inputs.slots = at::full({tokens}, -1, On(at::kLong));
    inputs.max_blocks = KvBlockPool::BlocksFor(longest);
    inputs.block_tables = zeros(tokens * inputs.max_blocks, at::kInt);
    DeviceRange& range = inputs.ranges.emplace_back();
    range.count = tokens;
    range.longest_key = longest;
    if (flash()) {
      // Flash attention has no padded rows, so this is one run over as many keys as shorter runs
      // may have together.
      range.flash = true;
      range.longest_query = tokens;
      const int64_t gathered =
          std::max(longest, std::min(cuda::kGatheredTokens, tokens / kFlashTokens * longest));
      range.slots = zeros(gathered, at::kLong);
      range.longest_key = gathered;
      range.query_ends = zeros(2, at::kInt);
      range.key_ends = zeros(2, at::kInt);
      range.query_ends.narrow(0, 1, 1).fill_(range.count);
      range.key_ends.narrow(0, 1, 1).fill_(gathered);
    }
    CudaForward::Residual residual = forward_->Layers(weights, inputs);
    const int64_t drawn = std::min(rows, tokens);
    const cuda::DrawMemory memory = cuda::MakeDrawMemory(
        drawn, config_.vocab_size, {.supports = true, .tops = true, .scores = true});
    std::vector<cuda::Draw> padded(static_cast<size_t>(std::min(drawn, kLogitsRows)), {.row = -1});
    const std::vector<int32_t> forbidden(
        static_cast<size_t>(drawn * cuda::KeptWords(config_.vocab_size)));
    cuda::PackedInputs packed;
    packed.Add(padded);
    packed.Add(forbidden);
    const at::Tensor draws = Send(packed);
    for (int64_t first = 0; first < drawn; first += kLogitsRows) {
      const int64_t count = std::min(kLogitsRows, drawn - first);
      const at::Tensor chosen = at::arange(first, first + count, On(at::kLong));
      const at::Tensor logits = forward_->Logits(weights, residual, chosen);
      cuda::DrawTokens(
          cuda::TaskOf(memory, logits, static_cast<const cuda::Draw*>(draws.const_data_ptr()),
                       nullptr, 0, count),
          cuda::CurrentStream());
    }
  }

  void HandOut(int64_t first, const at::Tensor& logits, OnLogits on_logits) const {
    const at::Tensor host = logits.to(at::kCPU);  // waits
    const auto width = static_cast<size_t>(config_.vocab_size);
    for (int64_t i = 0; i < host.size(0); ++i) {
      on_logits(first + i, {host.const_data_ptr<float>() + i * config_.vocab_size, width});
    }
  }

  MachineWork AccountOf(const CudaWeights& weights, double rows, double num_logits, double attended,
                        double kv_read) const {
    const double each = static_cast<double>(tandem::cuda::ElementBytes(element()));
    const double head = static_cast<double>(config_.hidden_size * config_.vocab_size);
    const double layers = static_cast<double>(weights.layer_bytes());
    const double head_values = static_cast<double>(config_.num_layers * config_.head_dim);
    MachineWork account;
    account.bytes = layers + (num_logits > 0 ? head * each : 0) +
                    2 * each * head_values * static_cast<double>(config_.num_kv_heads) * kv_read;
    (each == 2 ? account.bf16_flops : account.flops) =
        2 * (layers / each) * rows + 2 * head * num_logits +
        4 * head_values * static_cast<double>(config_.num_heads) * attended;
    return account;
  }

  const ModelConfig config_;
  const EngineOptions options_;
  const std::string kernels_ = absl::StrCat("cuda ", cuda::DeviceName());
  const c10::Stream stream_;
  std::optional<CudaForward> forward_;  // made on the stream
  at::Tensor host_step_;                // pinned: the inputs of a step without a graph
  GraphMemory memory_;
  cuda::GraphCache<cuda::DeviceGraph> graphs_;  // read memory_ and forward_
  bool room_for_graphs_ = true;
  MachineWork account_;
  absl::Status failed_copy_;
};

absl::Status FindDevice() {
  TANDEM_ASSIGN_OR_RETURN(const int count, CatchTorch("CUDA devices", cuda::DeviceCount));
  if (count > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "engine.device is cuda, and this machine has no CUDA device");
}

absl::Status CheckShapes(const ModelConfig& config, bool invariant) {
  TANDEM_RETURN_IF_ERROR(CheckPlainDecoder(config, "the rollout server on a CUDA device"));
  if (config.head_dim > 256 || config.head_dim % 8 != 0 || config.hidden_size % 4 != 0 ||
      config.vocab_size > cuda::kLargestVocabulary) {
    return Unimplemented(
        "a model with head_dim ", config.head_dim, ", hidden size ", config.hidden_size,
        " and vocabulary ", config.vocab_size,
        " on a CUDA device: want head_dim up to 256 and a multiple of 8, a hidden size that is a "
        "multiple of 4, and at most ",
        cuda::kLargestVocabulary, " ids");
  }
  if (invariant && (config.hidden_size % 8 != 0 || config.intermediate_size % 8 != 0)) {
    return Unimplemented("numerics invariant on a CUDA device for a model with hidden size ",
                         config.hidden_size, " and intermediate size ", config.intermediate_size,
                         ": want multiples of 8");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<cuda::MemoryPlan> PlanCudaMemory(const ModelConfig& config,
                                                const EngineOptions& options) {
  TANDEM_RETURN_IF_ERROR(FindDevice());
  TANDEM_ASSIGN_OR_RETURN(const cuda::DeviceMemory memory,
                          CatchTorch("memory of the CUDA device", cuda::MemoryOfDevice));
  return cuda::PlanMemory(config, options, memory);
}

absl::StatusOr<std::unique_ptr<TokenRunner>> MakeCudaRunner(const ModelConfig& config,
                                                            const EngineOptions& options) {
  TANDEM_RETURN_IF_ERROR(FindDevice());
  const bool invariant = options.numerics != Numerics::kFast;
  TANDEM_RETURN_IF_ERROR(CheckShapes(config, invariant));
  try {
    auto runner = std::make_unique<CudaRunner>(config, options);
    if (invariant) {
      TANDEM_RETURN_IF_ERROR(cuda::CheckDeviceInvariance(config, runner->element()));
    }
    return std::unique_ptr<TokenRunner>(std::move(runner));
  } catch (const c10::OutOfMemoryError&) {
    return ResourceExhausted("no device memory for a KV cache of ", options.kv_capacity_tokens,
                             " tokens: lower engine.kv_capacity_tokens");
  } catch (const std::exception& error) {
    return Internal("the CUDA device: ", error.what());
  }
}

}  // namespace tandem::rollout
