// When a step is nothing but decodes and so may run as a CUDA graph, which graph that is, and the
// bytes it reads. Pure; free of LibTorch and CUDA.
//
// A graph is a step of one padded size put down once: the same kernels on the same memory. So all
// that differs between two steps is data in that memory (Fill), and all that a launch depends on is
// in the key. Padded rows have no context, write no KV and draw nothing; what they compute is read
// by nobody.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "rollout_server/engine/cuda/draw/draw_kernel.h"
#include "rollout_server/engine/forward/token_runner.h"

namespace tandem::rollout::cuda {

// Rows of logits that exist at once. The head's weights are read once for each so many rows: as
// many as a graph may have, so that a step of decodes reads them once.
inline constexpr int64_t kLogitsRows = 512;
// Larger steps run as they come: their kernels take longer than it takes to launch them.
inline constexpr int64_t kMaxGraphRows = 512;
inline constexpr int64_t kMaxGraphChunks = 128;  // of kAttentionChunk tokens of context
inline constexpr int64_t kForbiddenEach = 8;     // words of forbidden ids for each row, on average

// What a graph depends on; besides it the model and the cache, which stay where they are.
struct GraphKey {
  int64_t rows = 0;      // padded
  int64_t chunks = 0;    // padded; no context has more
  uint64_t weights = 0;  // CudaWeights::place
  auto operator<=>(const GraphKey&) const = default;
};

// 1, 2, 4, 8 and multiples of 8, of 16 from 64 on, of 64 from 256 on: at most 1/5 is padding from
// 32 rows on.
int64_t PaddedRows(int64_t rows);
int64_t PaddedChunks(int64_t longest_context);  // a power of two

// Does a draw have a support to record: is it asked for, and is a filter on?
bool RecordsSupport(const SamplingParams& params);

// The graph of this step, or nothing: when a row is not drawn from exactly once, or the step is
// over one of the sizes above.
std::optional<GraphKey> GraphOf(std::span<const TokenInput> inputs,
                                std::span<const int64_t> logits_rows,
                                std::span<const TokenDraw> draws, uint64_t weights);

// Where the arrays of a graph's inputs begin, in bytes from the first; each at a multiple of 16.
struct DecodeLayout {
  int64_t max_blocks = 0;
  size_t ids = 0, positions = 0, sequences = 0, contexts = 0;  // [rows] int32
  size_t slots = 0, logits_rows = 0;                           // [rows] int64
  size_t block_tables = 0;                                     // [rows, max_blocks] int32
  size_t draws = 0;      // [rows] Draw, each of its row within its kLogitsRows
  size_t forbidden = 0;  // [rows kForbiddenEach] int32
  size_t bytes = 0;
};
DecodeLayout LayoutOf(const GraphKey& key);

// The inputs of a step that has this key, as its graph reads them.
void Fill(const GraphKey& key, std::span<const TokenInput> inputs, std::span<const TokenDraw> draws,
          std::span<std::byte> to);

// StopIds::words of the draws of a call, one behind the other: a group's once, however many draws
// it has.
class ForbiddenWords {
 public:
  // Where those of `ids` begin; they are put down when they are asked for first.
  int32_t BeginOf(const StopIds& ids);
  const std::vector<int32_t>& words() const { return words_; }

 private:
  std::map<const StopIds*, int32_t> begins_;
  std::vector<int32_t> words_;
};

// As the kernel reads it, with its forbidden ids in `forbidden`. A support goes to row `kept_row`
// of `kept`.
Draw AsDraw(const TokenDraw& draw, int64_t row, int64_t kept_row, ForbiddenWords& forbidden);

// The ids of a row of `kept`, rising.
std::vector<int32_t> KeptIds(std::span<const uint32_t> words);

}  // namespace tandem::rollout::cuda
