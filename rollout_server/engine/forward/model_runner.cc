#include "rollout_server/engine/forward/model_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kBlock = KvBlockPool::kBlockTokens;
constexpr int64_t kRowBlock = 64;       // most rows multiplied by one tile of weights at a time
constexpr int64_t kTokensTogether = 8;  // tokens of a sequence attended together
constexpr int64_t kLogitsRows = 64;     // rows of logits that exist at once
constexpr int64_t kItemsPerThread = 4;  // work items of a phase, so that threads end it together
constexpr int64_t kTile = PackedMatrix::kTileColumns;

int64_t WholeTiles(int64_t columns) { return (columns + kTile - 1) / kTile * kTile; }

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The rows of each of `parts` nearly equal parts: even, for the int8 head has pairs of rows.
int64_t RowsEach(int64_t rows, int64_t parts) { return Ceil(Ceil(rows, parts), 2) * 2; }

// Bytes of an element of a key or value.
int64_t KvBytes(ComputeDType dtype, KvFormat kv) {
  if (kv != KvFormat::kDtype) return 1;
  return dtype == ComputeDType::kBf16 ? 2 : 4;
}

// Bytes of a head's scale.
int64_t KvScaleBytes(KvFormat kv) { return kv == KvFormat::kDtype ? 0 : 4; }

// How many key heads (and as many value heads) a cache holds, over all layers and tokens.
int64_t CachedHeads(const ModelConfig& config, int64_t num_blocks) {
  return config.num_layers * num_blocks * config.num_kv_heads * kBlock;
}

bool HasOutputNorms(const ModelConfig& config) {
  return !config.norms.attention_out.empty() || !config.norms.mlp_out.empty();
}

void RoundIfAsked(float* values, int64_t n, int bits) {
  if (bits < kFp32SignificandBits) RoundToBits(values, n, bits);
}

// To symmetric integers of `bits` bits and back.
void Quantise(float* values, int64_t n, int bits) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(values[i]));
  if (largest == 0) return;
  const float scale = largest / static_cast<float>((1 << (bits - 1)) - 1);
  for (int64_t i = 0; i < n; ++i) values[i] = std::nearbyint(values[i] / scale) * scale;
}

}  // namespace

ModelRunner::ModelRunner(const ModelConfig& config, ComputeDType dtype, QuantisationPlan plan,
                         int64_t num_blocks, int num_threads, InstructionSet instruction_set)
    : config_(config),
      dtype_(dtype),
      plan_(std::move(plan)),
      num_blocks_(num_blocks),
      set_(instruction_set),
      kernels_(ForwardKernelsFor(instruction_set)),
      gated_unit_(kernels_.GatedUnit(config.activation)),
      attention_scale_(config.attention_scale()),
      team_(num_threads),
      normed_(set_, dtype == ComputeDType::kBf16, config.hidden_size),
      attended_(set_, dtype == ComputeDType::kBf16, config.num_heads * config.head_dim),
      activated_(set_, dtype == ComputeDType::kBf16, config.intermediate_size),
      head_rows_(set_, false, config.hidden_size),
      adapters_(kernels_),
      head_adapters_(kernels_),
      scratch_(num_threads) {
  for (RotaryEmbedding& embedding : RotaryEmbeddings(config)) {
    rotary_.push_back({std::move(embedding), {}, {}});
  }
  const int64_t heads = CachedHeads(config, num_blocks);
  const int64_t element = KvBytes(dtype, plan_.kv);
  keys_ = AlignedBuffer(heads * config.head_dim * element);
  values_ = AlignedBuffer(heads * PaddedHeadDim(config.head_dim) * element);
  key_scales_ = AlignedBuffer(heads * KvScaleBytes(plan_.kv));
  value_scales_ = AlignedBuffer(heads * KvScaleBytes(plan_.kv));
  keys_.Commit();
  values_.Commit();
  logits_ = AlignedBuffer(kLogitsRows * WholeTiles(config.vocab_size) * 4);
  final_normed_ = AlignedBuffer(kLogitsRows * config.hidden_size * 4);
  head_rows_.Reserve(2 * kLogitsRows);
}

int64_t ModelRunner::CacheBytes(const ModelConfig& config, ComputeDType dtype, KvFormat kv,
                                int64_t num_blocks) {
  return CachedHeads(config, num_blocks) *
         ((config.head_dim + PaddedHeadDim(config.head_dim)) * KvBytes(dtype, kv) +
          2 * KvScaleBytes(kv));
}

template <typename Kv>
KvLayer<Kv> ModelRunner::Cache(int64_t layer) {
  KvLayer<Kv> cache;
  cache.key_head_stride = config_.head_dim * kBlock;
  cache.value_head_stride = kBlock * PaddedHeadDim(config_.head_dim);
  cache.key_block_stride = config_.num_kv_heads * cache.key_head_stride;
  cache.value_block_stride = config_.num_kv_heads * cache.value_head_stride;
  cache.keys = keys_.as<Kv>() + layer * num_blocks_ * cache.key_block_stride;
  cache.values = values_.as<Kv>() + layer * num_blocks_ * cache.value_block_stride;
  cache.num_heads = config_.num_kv_heads;
  if constexpr (kHasKvScales<Kv>) {
    const int64_t first = layer * num_blocks_ * config_.num_kv_heads * kBlock;
    cache.key_scales = key_scales_.as<float>() + first;
    cache.value_scales = value_scales_.as<float>() + first;
  }
  return cache;
}

// Grows the buffers for these inputs, and groups neighbouring tokens into runs.
void ModelRunner::Prepare(std::span<const TokenInput> inputs) {
  const int64_t n = static_cast<int64_t>(inputs.size());
  if (n > capacity_) {
    capacity_ = n;
    const int64_t heads = config_.num_heads + 2 * config_.num_kv_heads;
    hidden_ = AlignedBuffer(n * config_.hidden_size * 4);
    for (Rotary& rotary : rotary_) {
      rotary.cosines = AlignedBuffer(n * rotary.embedding.rotated() / 2 * 4);
      rotary.sines = AlignedBuffer(n * rotary.embedding.rotated() / 2 * 4);
    }
    if (HasOutputNorms(config_)) product_ = AlignedBuffer(n * WholeTiles(config_.hidden_size) * 4);
    qkv_ = AlignedBuffer(n * WholeTiles(heads * config_.head_dim) * 4);
    normed_.Reserve(n);
    attended_.Reserve(n);
    activated_.Reserve(n);
  }
  int64_t longest = 0;
  runs_.clear();
  for (int64_t i = 0; i < n; ++i) {
    longest = std::max<int64_t>(longest, inputs[i].position + 1);
    const bool follows = i > 0 && inputs[i].blocks == inputs[i - 1].blocks &&
                         inputs[i].position == inputs[i - 1].position + 1;
    if (follows && runs_.back().count < kTokensTogether) {
      ++runs_.back().count;
    } else {
      runs_.push_back({i, 1});
    }
  }
  const int64_t head_group = config_.num_heads / config_.num_kv_heads;
  const size_t scratch = static_cast<size_t>(
      std::max({AttentionScratch(longest) + kTokensTogether * head_group * config_.head_dim,
                kRowBlock * kTile, config_.hidden_size}));
  for (std::vector<float>& one : scratch_) {
    if (one.size() < scratch) one.resize(scratch);
  }
}

void ModelRunner::Embed(const ModelWeights& weights, int64_t token_id, int64_t row) {
  float* hidden = hidden_.as<float>() + row * config_.hidden_size;
  weights.embeddings().CopyColumn(token_id, hidden);
  if (config_.embedding_scale == 1) return;
  for (int64_t i = 0; i < config_.hidden_size; ++i) hidden[i] *= config_.embedding_scale;
}

void ModelRunner::FillRotary(std::span<const TokenInput> inputs, int64_t row) {
  for (Rotary& rotary : rotary_) {
    const RotaryEmbedding& embedding = rotary.embedding;
    const int64_t half = embedding.rotated() / 2;
    float* cosines = rotary.cosines.as<float>() + row * half;
    float* sines = rotary.sines.as<float>() + row * half;
    for (int64_t i = 0; i < half; ++i) {
      const float angle =
          RoundedToBits(static_cast<float>(inputs[row].position) * embedding.inverse_frequencies[i],
                        arithmetic_.precision.rotary_bits);
      cosines[i] = std::cos(angle) * embedding.scale;
      sines[i] = std::sin(angle) * embedding.scale;
    }
  }
}

// How a matrix of the layers takes its inputs.
OperandType ModelRunner::InputType(const ModelWeights& weights, const PackedMatrix& matrix) const {
  return weights.int8_rows(matrix) ? OperandType::kInt8 : normed_.wide_type();
}

// Stores values as part of the operand of the next linear layer.
void ModelRunner::StoreBody(OperandRows& rows, OperandType type, int64_t row, int64_t first,
                            float* values, int64_t n) const {
  RoundIfAsked(values, n, arithmetic_.precision.body_bits);
  rows.StorePart(type, row, first, values, n);
}

// To be called when all parts of the `n` rows are stored, which are the inputs of matrix `next`.
void ModelRunner::FinishRows(ThreadTeam::Member& member, OperandRows& rows, OperandType type,
                             MatrixPlace next, int64_t n) {
  const bool quantises = type == OperandType::kInt8, adapts = adapters_.any();
  if (!quantises && !adapts) return;
  member.ForEach(n, [&](int64_t row) {
    if (quantises) rows.Finish(row);
    if (adapts) adapters_.Project(next, row, rows.Collected(row));
  });
}

// RMS norm: hidden -> normed, as the operand of matrix `next`. Without a weight the values stay.
void ModelRunner::Norm(ThreadTeam::Member& member, const std::vector<float>& weight,
                       OperandType type, MatrixPlace next, int64_t rows) {
  const int64_t width = config_.hidden_size;
  float* scratch = scratch_[member.index()].data();
  member.ForEach(rows, [&](int64_t row) {
    const float* hidden = hidden_.as<float>() + row * width;
    if (weight.empty()) {
      std::copy_n(hidden, width, scratch);
    } else {
      kernels_.rms_norm(hidden, weight.data(), width, static_cast<float>(config_.rms_norm_eps),
                        scratch);
    }
    RoundIfAsked(scratch, width, arithmetic_.precision.body_bits);
    normed_.Store(type, row, scratch);
    if (adapters_.any()) adapters_.Project(next, row, scratch);
  });
}

// Computes the product tile by tile: kTile columns times up to kRowBlock rows, so that a tile's
// weights stay in the cache while rows pass. done(tile, first row, rows, values, stride) is called
// for each finished block. The values are rows of `out`, or scratch memory when it is null.
// `following` is the matrix that is multiplied next; its first weights are prefetched at the end.
template <typename Done>
void ModelRunner::Multiply(ThreadTeam::Member& member, const PackedMatrix& matrix,
                           const PackedMatrix& following, const Operand& x, int64_t rows,
                           float* out, int64_t out_stride, const Done& done) {
  const int64_t tiles = matrix.num_tiles();
  const int64_t splits =
      std::min(Ceil(rows, kRowBlock), Ceil(kItemsPerThread * team_.size(), tiles));
  const int64_t rows_each = RowsEach(rows, splits);
  const void* first_following = following.TileAddress(member.FirstOf(following.num_tiles()));
  float* scratch = scratch_[member.index()].data();
  member.ForEach(tiles * splits, [&](int64_t item) {
    const int64_t tile = item / splits, begin = item % splits * rows_each;
    const int64_t end = std::min(rows, begin + rows_each);
    const void* next = tile + 1 < tiles ? matrix.TileAddress(tile + 1) : first_following;
    const int64_t block = RowsEach(end - begin, Ceil(end - begin, kRowBlock));
    for (int64_t row = begin; row < end; row += block) {
      const int64_t count = std::min(block, end - row);
      float* to = out != nullptr ? out + row * out_stride + tile * kTile : scratch;
      const int64_t stride = out != nullptr ? out_stride : kTile;
      const Operand part = x.From(row, matrix.depth());
      matrix.MultiplyTile(set_, tile, part, count, to, stride, row + count == end ? next : nullptr);
      done(tile, row, count, to, stride);
    }
  });
}

namespace {

void AddBias(const std::vector<float>& bias, int64_t tile, int64_t rows, float* values,
             int64_t stride) {
  const int64_t first = tile * kTile;
  const int64_t count = std::min<int64_t>(kTile, static_cast<int64_t>(bias.size()) - first);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < count; ++i) values[r * stride + i] += bias[first + i];
  }
}

}  // namespace

// hidden += x W + b, or the norm of that.
void ModelRunner::AddProduct(ThreadTeam::Member& member, const LinearWeights& weights,
                             MatrixPlace place, const std::vector<float>& out_norm,
                             const PackedMatrix& following, const Operand& x, int64_t rows) {
  const int64_t width = config_.hidden_size, stride_out = WholeTiles(width);
  const bool normed = !out_norm.empty();
  Multiply(member, weights.matrix, following, x, rows, normed ? product_.as<float>() : nullptr,
           stride_out,
           [&](int64_t tile, int64_t row, int64_t count, float* values, int64_t stride) {
             AddBias(weights.bias, tile, count, values, stride);
             if (adapters_.any()) adapters_.Add(place, tile, row, count, values, stride);
             if (normed) return;
             kernels_.add_rows(values, stride, count, std::min(kTile, width - tile * kTile),
                               hidden_.as<float>() + row * width + tile * kTile, width);
           });
  if (!normed) return;
  member.ForEach(rows, [&](int64_t row) {
    float* product = product_.as<float>() + row * stride_out;
    kernels_.rms_norm(product, out_norm.data(), width, static_cast<float>(config_.rms_norm_eps),
                      product);
    kernels_.add_rows(product, stride_out, 1, width, hidden_.as<float>() + row * width, width);
  });
}

// Rounds one head's key or value before it is written.
void ModelRunner::RoundKv(float* values, int64_t position) const {
  RoundIfAsked(values, config_.head_dim, arithmetic_.precision.kv_bits);
  if (arithmetic_.kv_quantisation.bits > 0 &&
      position >= arithmetic_.kv_quantisation.from_position) {
    Quantise(values, config_.head_dim, arithmetic_.kv_quantisation.bits);
  }
}

// The RMS norm of each head, or of all heads as one row, in place, where the model has one.
void ModelRunner::NormHeads(const std::vector<float>& weight, int64_t heads, float* values) const {
  if (weight.empty()) return;
  const int64_t width = std::ssize(weight), rows = heads * config_.head_dim / width;
  for (int64_t r = 0; r < rows; ++r) {
    kernels_.rms_norm(values + r * width, weight.data(), width,
                      static_cast<float>(config_.rms_norm_eps), values + r * width);
  }
}

// Normalises and rotates queries and keys in place, scales queries, and stores keys and values.
template <typename Kv>
void ModelRunner::RotateAndStore(const LayerWeights& weights, const LayerForm& form,
                                 const KvLayer<Kv>& cache, const TokenInput& input, int64_t row) {
  const int64_t d = config_.head_dim, heads = config_.num_heads, kv_heads = config_.num_kv_heads;
  const Rotary& rotary = rotary_[form.sliding_rope ? 1 : 0];
  const int64_t half = rotary.embedding.rotated() / 2;
  const RotationForm rotation = {form.has_rotary ? 2 * half : 0, config_.interleaved_rotary};
  const float* cosine = rotary.cosines.as<float>() + row * half;
  const float* sine = rotary.sines.as<float>() + row * half;
  float* queries = qkv_.as<float>() + row * WholeTiles((heads + 2 * kv_heads) * d);
  float* keys = queries + heads * d;
  NormHeads(weights.q_norm, heads, queries);
  NormHeads(weights.k_norm, kv_heads, keys);
  for (int64_t h = 0; h < heads; ++h) {
    kernels_.rotate(queries + h * d, cosine, sine, d, rotation, attention_scale_);
  }
  const int64_t block = (*input.blocks)[input.position / kBlock], slot = input.position % kBlock;
  for (int64_t h = 0; h < kv_heads; ++h) {
    float* key = keys + h * d;
    float* value = keys + (kv_heads + h) * d;
    kernels_.rotate(key, cosine, sine, d, rotation, 1.0f);
    RoundKv(key, input.position);
    RoundKv(value, input.position);
    kernels_.WriteKv<Kv>()(key, value, d, cache, {block, h, slot});
  }
}

template <typename Kv>
void ModelRunner::Attend(ThreadTeam::Member& member, int64_t layer, const KvLayer<Kv>& cache,
                         OperandType type, std::span<const TokenInput> inputs) {
  const LayerForm form = config_.layer(layer);
  const int64_t d = config_.head_dim, kv_heads = config_.num_kv_heads;
  const int64_t group = config_.num_heads / kv_heads;
  const int64_t qkv_width = WholeTiles((config_.num_heads + 2 * kv_heads) * d);
  float* out = scratch_[member.index()].data();
  float* scores = out + kTokensTogether * group * d;
  member.ForEach(static_cast<int64_t>(runs_.size()) * kv_heads, [&](int64_t item) {
    const TokenRun& run = runs_[item / kv_heads];
    const int64_t h = item % kv_heads;
    AttentionTask<Kv> task;
    task.queries = qkv_.as<float>() + run.first * qkv_width + h * group * d;
    task.query_stride = qkv_width;
    task.num_tokens = run.count;
    task.num_heads = group;
    task.head_dim = d;
    task.first_position = inputs[run.first].position;
    task.window = form.window;
    task.softcap = config_.attention_softcap;
    task.layer = cache;
    task.kv_head = h;
    task.blocks = inputs[run.first].blocks->data();
    task.out = out;
    task.out_stride = group * d;
    kernels_.Attend<Kv>()(task, scores);
    for (int64_t t = 0; t < run.count; ++t) {
      StoreBody(attended_, type, run.first + t, h * group * d, out + t * group * d, group * d);
    }
  });
  FinishRows(member, attended_, type, {layer, Site::kO}, std::ssize(inputs));
}

template <typename Kv>
void ModelRunner::RunLayer(ThreadTeam::Member& member, int64_t index, const ModelWeights& all,
                           std::span<const TokenInput> inputs) {
  const LayerWeights& weights = all.layers[index];
  const LayerForm form = config_.layer(index);
  const PackedMatrix& after =
      index + 1 < config_.num_layers ? all.layers[index + 1].qkv.matrix : all.head;
  const int64_t n = static_cast<int64_t>(inputs.size());
  const KvLayer<Kv> cache = Cache<Kv>(index);
  const int64_t qkv_columns = (config_.num_heads + 2 * config_.num_kv_heads) * config_.head_dim;

  const OperandType qkv_type = InputType(all, weights.qkv.matrix);
  Norm(member, weights.attention_norm, qkv_type, {index, Site::kQkv}, n);
  Multiply(member, weights.qkv.matrix, weights.o.matrix, normed_.All(qkv_type), n, qkv_.as<float>(),
           WholeTiles(qkv_columns),
           [&](int64_t tile, int64_t row, int64_t count, float* values, int64_t stride) {
             AddBias(weights.qkv.bias, tile, count, values, stride);
             if (adapters_.any()) {
               adapters_.Add({index, Site::kQkv}, tile, row, count, values, stride);
             }
           });
  member.ForEach(n, [&](int64_t row) { RotateAndStore(weights, form, cache, inputs[row], row); });
  const OperandType o_type = InputType(all, weights.o.matrix);
  Attend(member, index, cache, o_type, inputs);
  AddProduct(member, weights.o, {index, Site::kO}, weights.attention_out_norm,
             weights.gate_up.matrix, attended_.All(o_type), n);

  const OperandType mlp_type = InputType(all, weights.gate_up.matrix);
  const OperandType down_type = InputType(all, weights.down.matrix);
  Norm(member, weights.mlp_norm, mlp_type, {index, Site::kGateUp}, n);
  const int64_t width = config_.intermediate_size;
  Multiply(member, weights.gate_up.matrix, weights.down.matrix, normed_.All(mlp_type), n, nullptr,
           0, [&](int64_t tile, int64_t row, int64_t count, float* values, int64_t stride) {
             constexpr int64_t kGates = kTile / 2;
             AddBias(weights.gate_up.bias, tile, count, values, stride);
             if (adapters_.any()) {
               adapters_.Add({index, Site::kGateUp}, tile, row, count, values, stride);
             }
             const int64_t first = tile * kGates, gates = std::min(kGates, width - first);
             for (int64_t r = 0; r < count; ++r) {
               float* gate = values + r * stride;
               gated_unit_(gate, gate + kGates, gates, gate);
               StoreBody(activated_, down_type, row + r, first, gate, gates);
             }
           });
  FinishRows(member, activated_, down_type, {index, Site::kDown}, n);
  AddProduct(member, weights.down, {index, Site::kDown}, weights.mlp_out_norm, after,
             activated_.All(down_type), n);
}

// final_normed_ -> logits_, of the rows of logits [first, first + rows).
void ModelRunner::MultiplyHead(ThreadTeam::Member& member, const ModelWeights& weights,
                               int64_t first, int64_t rows) {
  const PackedMatrix& following = weights.layers[0].qkv.matrix;
  const int64_t width = config_.hidden_size, stride = WholeTiles(config_.vocab_size);
  if (!weights.int8_rows(weights.head)) {
    Multiply(member, weights.head, following,
             {OperandType::kFp32, final_normed_.as<float>(), width}, rows, logits_.as<float>(),
             stride, [&](int64_t tile, int64_t row, int64_t count, float* values, int64_t between) {
               if (!head_adapters_.any()) return;
               head_adapters_.Add({}, tile, first + row, count, values, between);
             });
    return;
  }
  member.ForEach(
      rows, [&](int64_t i) { head_rows_.StoreInt16(i, final_normed_.as<float>() + i * width); });
  Multiply(member, weights.head, following, head_rows_.All(OperandType::kInt8), 2 * rows, nullptr,
           0, [&](int64_t tile, int64_t row, int64_t count, float* values, int64_t between) {
             for (int64_t r = 0; r < count; r += 2) {
               float* out = logits_.as<float>() + (row + r) / 2 * stride + tile * kTile;
               const float* high = values + r * between;
               for (int64_t c = 0; c < kTile; ++c) out[c] = high[c] + high[between + c];
             }
             if (!head_adapters_.any()) return;
             head_adapters_.Add({}, tile, first + row / 2, count / 2,
                                logits_.as<float>() + row / 2 * stride + tile * kTile, stride);
           });
}

void ModelRunner::RunHead(ThreadTeam::Member& member, const ModelWeights& weights,
                          std::span<const int64_t> logits_rows, OnLogits on_logits) {
  const int64_t width = config_.hidden_size, stride = WholeTiles(config_.vocab_size);
  const int64_t total = static_cast<int64_t>(logits_rows.size());
  for (int64_t first = 0; first < total; first += kLogitsRows) {
    const int64_t rows = std::min(kLogitsRows, total - first);
    member.ForEach(rows, [&](int64_t i) {
      kernels_.rms_norm(hidden_.as<float>() + logits_rows[first + i] * width,
                        weights.final_norm.data(), width, static_cast<float>(config_.rms_norm_eps),
                        final_normed_.as<float>() + i * width);
      RoundIfAsked(final_normed_.as<float>() + i * width, width, arithmetic_.precision.head_bits);
      if (head_adapters_.any()) {
        head_adapters_.Project({}, first + i, final_normed_.as<float>() + i * width);
      }
    });
    MultiplyHead(member, weights, first, rows);
    member.ForEach(rows, [&](int64_t i) {
      float* logits = logits_.as<float>() + i * stride;
      if (config_.logit_softcap > 0) {
        kernels_.soft_cap(logits, config_.vocab_size, config_.logit_softcap);
      }
      RoundIfAsked(logits, config_.vocab_size, arithmetic_.precision.head_bits);
      on_logits(first + i, {logits, static_cast<size_t>(config_.vocab_size)});
    });
  }
}

// The layers' products multiply in the compute dtype or in int8; attention and the head in fp32, an
// int8 head in int8.
MachineWork ModelRunner::AccountOf(const ModelWeights& weights, std::span<const TokenInput> inputs,
                                   int64_t num_logits) const {
  // In int8 the head's rows are two each.
  const bool int8_head = weights.int8_rows(weights.head);
  const double head =
      static_cast<double>(config_.hidden_size) * static_cast<double>(config_.vocab_size);
  const double head_products = 2 * head * static_cast<double>(num_logits);
  const double head_bytes = static_cast<double>(weights.head.bytes());
  const double layer_bytes = static_cast<double>(weights.linear_bytes()) - head_bytes;
  double context = 0;  // KV entries read, over layers: those of neighbouring tokens once
  double attended = 0;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const int64_t window = config_.layer(layer).window;
    for (const TokenRun& run : runs_) {
      const int64_t last = inputs[run.first + run.count - 1].position + 1;
      const int64_t seen = window > 0 ? std::min(last, window + run.count - 1) : last;
      context += static_cast<double>(seen);
      attended += static_cast<double>(run.count) * static_cast<double>(seen);
    }
  }
  const double head_values = static_cast<double>(config_.head_dim);
  MachineWork account;
  account.bytes = layer_bytes + (num_logits > 0 ? head_bytes : 0) +
                  2 *
                      (static_cast<double>(KvBytes(dtype_, plan_.kv)) * head_values +
                       static_cast<double>(KvScaleBytes(plan_.kv))) *
                      static_cast<double>(config_.num_kv_heads) * context;
  int64_t by_int8 = 0;  // weights that are multiplied with int8 rows
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      if (weights.int8_rows(linear->matrix)) {
        by_int8 += linear->matrix.columns() * linear->matrix.depth();
      }
    }
  }
  const int64_t others = weights.linear_weights() - by_int8;
  account.int8_ops =
      2 * static_cast<double>(by_int8 * std::ssize(inputs)) + (int8_head ? 2 * head_products : 0);
  (dtype_ == ComputeDType::kBf16 ? account.bf16_flops : account.flops) =
      2 * static_cast<double>(others * std::ssize(inputs));
  account.flops += (int8_head ? 0 : head_products) +
                   4 * head_values * static_cast<double>(config_.num_heads) * attended;
  return account;
}

absl::Status ModelRunner::Run(const StagedWeights& packed, std::span<const TokenInput> inputs,
                              std::span<const int64_t> logits_rows, OnLogits on_logits,
                              const ForwardArithmetic& arithmetic) {
  const auto* const adapted = dynamic_cast<const AdaptedWeights*>(&packed);
  const auto& weights =
      adapted != nullptr ? *adapted->base : static_cast<const ModelWeights&>(packed);
  arithmetic_ = arithmetic;
  Prepare(inputs);
  PrepareAdapters(adapted != nullptr ? adapted->adapter.get() : nullptr, inputs, logits_rows);
  account_ = AccountOf(weights, inputs, static_cast<int64_t>(logits_rows.size()));
  team_.Run([&](ThreadTeam::Member& member) {
    member.ForEach(static_cast<int64_t>(inputs.size()), [&](int64_t row) {
      Embed(weights, inputs[row].token_id, row);
      FillRotary(inputs, row);
    });
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      if (plan_.kv == KvFormat::kInt8) {
        RunLayer<int8_t>(member, i, weights, inputs);
      } else if (plan_.kv == KvFormat::kFp8E4m3) {
        RunLayer<E4m3>(member, i, weights, inputs);
      } else if (dtype_ == ComputeDType::kBf16) {
        RunLayer<uint16_t>(member, i, weights, inputs);
      } else {
        RunLayer<float>(member, i, weights, inputs);
      }
    }
    RunHead(member, weights, logits_rows, on_logits);
  });
  return absl::OkStatus();
}

void ModelRunner::CopyBlocks(std::span<const BlockCopy> copies) {
  const auto copy = [&](AlignedBuffer& cache) {
    const int64_t bytes = cache.size() / (config_.num_layers * num_blocks_);
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      char* base = cache.as<char>() + layer * num_blocks_ * bytes;
      for (const BlockCopy& c : copies) {
        std::memcpy(base + c.to * bytes, base + c.from * bytes, bytes);
      }
    }
  };
  copy(keys_);
  copy(values_);
  if (plan_.kv == KvFormat::kDtype) return;
  copy(key_scales_);
  copy(value_scales_);
}

}  // namespace tandem::rollout
