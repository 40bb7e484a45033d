// Decode steps as CUDA graphs: whether a step may run as one, which graph that is, and the bytes
// that the graph reads. Pure; free of LibTorch and CUDA.
//
// A graph replays the kernels of one padded step on the same memory, which saves the time of its
// many small launches (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs).
// Invariant: all that a launch depends on is in the key, and all else that differs between two
// steps is data in that memory (Fill). Padded rows have no context, write no KV and sample nothing;
// their results are not read.
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

// Rows of logits that exist at once. The head's weights are read once for each such slice; it is as
// large as a graph, so that a decode step reads them once.
inline constexpr int64_t kLogitsRows = 512;
// Larger steps run without a graph: their kernels take longer than their launches.
inline constexpr int64_t kMaxGraphRows = 512;
inline constexpr int64_t kMaxGraphChunks = 128;  // of kAttentionChunk tokens of context
inline constexpr int64_t kForbiddenEach = 8;     // words of forbidden ids for each row, on average

// What a graph depends on, besides the model and the cache, which never move.
struct GraphKey {
  int64_t rows = 0;      // padded
  int64_t chunks = 0;    // padded; of the longest context
  uint64_t weights = 0;  // CudaWeights::place
  auto operator<=>(const GraphKey&) const = default;
};

// 1, 2, 4, 8 and multiples of 8, of 16 from 64 on, of 64 from 256 on: at most 1/5 is padding from
// 32 rows on.
int64_t PaddedRows(int64_t rows);
int64_t PaddedChunks(int64_t longest_context);  // a power of two

// Must the support be recorded: is it requested, and is a filter on?
bool RecordsSupport(const SamplingParams& params);

// The graph of this step. None when a row is not sampled from exactly once, or the step is over one
// of the sizes above.
std::optional<GraphKey> GraphOf(std::span<const TokenInput> inputs,
                                std::span<const int64_t> logits_rows,
                                std::span<const TokenDraw> draws, uint64_t weights);

// Where the arrays of a graph's inputs begin, in bytes from the first; each at a multiple of 16.
struct DecodeLayout {
  int64_t max_blocks = 0;
  size_t ids = 0, positions = 0, sequences = 0, contexts = 0;  // [rows] int32
  size_t slots = 0, logits_rows = 0;                           // [rows] int64
  size_t block_tables = 0;                                     // [rows, max_blocks] int32
  size_t draws = 0;      // [rows] Draw; Draw::row counts within a slice of kLogitsRows
  size_t forbidden = 0;  // [rows kForbiddenEach] int32
  size_t bytes = 0;
};
DecodeLayout LayoutOf(const GraphKey& key);

// Writes the inputs of a step of this key in the layout that its graph reads.
void Fill(const GraphKey& key, std::span<const TokenInput> inputs, std::span<const TokenDraw> draws,
          std::span<std::byte> to);

// StopIds::words of the draws of a call, concatenated; those of a group are included once.
class ForbiddenWords {
 public:
  // Where the words of `ids` begin. Appends them at the first call.
  int32_t BeginOf(const StopIds& ids);
  const std::vector<int32_t>& words() const { return words_; }

 private:
  std::map<const StopIds*, int32_t> begins_;
  std::vector<int32_t> words_;
};

// The draw in the form that the kernel reads, with its forbidden ids in `forbidden`. A support goes
// to row `kept_row` of `kept`.
Draw AsDraw(const TokenDraw& draw, int64_t row, int64_t kept_row, ForbiddenWords& forbidden);

// The ids of a row of `kept`, rising.
std::vector<int32_t> KeptIds(std::span<const uint32_t> words);

}  // namespace tandem::rollout::cuda
