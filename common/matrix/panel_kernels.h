// The kernels behind PackedMatrix: products of a few rows with one or two panels. Internal to this
// folder. Pure.
//
// Layouts of a panel of 16 output features (k counts input features), each followed by scales:
//   kFp32   [depth][16] floats
//   kBf16   [ceil(depth / 2)][16] words: k in the low half, k + 1 in the high half
//   kBytes  [ceil(depth / 4)][16] words: k .. k + 3 in the bytes from the lowest; then 16 fp32
//           scales. int8 as value + 128, fp8 as its code. Values past the depth are 0.
//   kInt4   [depth / 8][16] words: value + 8 of k, k + 2, k + 1, k + 3 in the low halves of the bytes
//           from the lowest, and of k + 4, k + 6, k + 5, k + 7 in their high halves; then
//           [groups][16] bf16 scales. The order lets one shift bring pairs (k, k + 1) to the low
//           bits of the two halves of a word, and one mask bring four values into its bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/matrix/operand.h"
#include "common/tensor/instruction_set.h"
#include "common/tensor/vector16.h"

namespace tandem {

struct PanelTask {
  Operand x;  // .data points to the first row
  int64_t rows = 0;
  const char* panels = nullptr;  // the first of `num_panels` (1 or 2)
  int64_t num_panels = 0, panel_bytes = 0;
  int64_t depth = 0;
  int64_t group = 0;  // input features with one scale, of kInt4
  float* out = nullptr;
  int64_t out_stride = 0;
  const char* next = nullptr;  // prefetched, `next_bytes` of it, unless null
  int64_t next_bytes = 0;
};

using PanelsFunction = void(const PanelTask&);

// Some rows of a task, with their share of what it prefetches: hardware prefetchers do not foresee
// the jump to the next tile.
struct TaskRows {
  int64_t first = 0;
  const char* next = nullptr;
  int64_t next_bytes = 0;

  // The same rows, with what one of `panels` panels prefetches.
  TANDEM_INLINE TaskRows OfPanel(int64_t panel, int64_t panels) const {
    const int64_t share = next_bytes / panels;
    return {first, next != nullptr ? next + panel * share : nullptr, share};
  }
};

// Prefetches in the equal steps of a kernel's loop, at most two cache lines with each.
class Ahead {
 public:
  TANDEM_INLINE Ahead(const PanelTask& task, const TaskRows& rows, int64_t steps)
      : at_(rows.next != nullptr ? rows.next : task.panels),
        step_(rows.next != nullptr ? (rows.next_bytes + steps - 1) / steps : 0) {}
  TANDEM_INLINE void Fetch() {
    __builtin_prefetch(at_, 0, 2);
    __builtin_prefetch(at_ + 64, 0, 2);
    at_ += step_;
  }

 private:
  const char* at_;
  const int64_t step_;
};

// Multiplies all rows of a task by Kernel::Tile<n>(task, rows) for n rows, n <= Kernel::kMostRows.
// Blocks of rows differ by one row at most, so that none is too small to keep the multipliers busy,
// and each prefetches its share: what comes next then arrives over the whole time of the task. A
// burst in its last rows takes longer than they do (tests/bench/results/2026-11-28-bf16-cpu.md).
template <typename Kernel>
void MultiplyRows(const PanelTask& task) {
  using Tile = void(const PanelTask&, const TaskRows&);
  static constexpr auto kTiles = []<size_t... i>(std::index_sequence<i...>) {
    return std::array<Tile*, sizeof...(i)>{&Kernel::template Tile<static_cast<int>(i) + 1>...};
  }
  (std::make_index_sequence<Kernel::kMostRows>());
  const int64_t blocks = (task.rows + Kernel::kMostRows - 1) / Kernel::kMostRows;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = task.rows * b / blocks, end = task.rows * (b + 1) / blocks;
    const int64_t fetched = task.next_bytes * first / task.rows;
    kTiles[static_cast<size_t>(end - first - 1)](
        task, {.first = first,
               .next = task.next != nullptr ? task.next + fetched : nullptr,
               .next_bytes = task.next_bytes * end / task.rows - fetched});
  }
}

// The panels' kernels by layout and operand. Those for kInt8 operands sum integers, and give the
// same bits for every instruction set.
PanelsFunction* WidePanels(InstructionSet set, bool bf16_weights, OperandType operand);
PanelsFunction* Int4Panels(InstructionSet set, OperandType operand);   // kFp32 or kBf16
PanelsFunction* IntegerPanels(InstructionSet set, bool int4_weights);  // kInt8

// kBytes with fp32 or bf16 rows, scales included. Fastest up to kFewByteRows rows; beyond,
// UnpackBytes, WidePanels and ScaleColumns give the same bits sooner.
inline constexpr int64_t kFewByteRows = 4;
PanelsFunction* FewByteRowsPanels(InstructionSet set, bool is_fp8, OperandType operand);

// Writes kBytes panels as kBf16 panels of the values without their scales, which bf16 holds
// exactly, one after another at `out`.
void UnpackBytes(InstructionSet set, bool is_fp8, const PanelTask& task, uint32_t* out);

// out[r][16 p + c] *= scale c of panel p, for the rows and panels of a kBytes task.
void ScaleColumns(InstructionSet set, const PanelTask& task);

constexpr int64_t WholeWords(int64_t depth, int64_t per_word) {
  return (depth + per_word - 1) / per_word;
}
constexpr int64_t BytesPanelWords(int64_t depth) { return WholeWords(depth, 4) * 16; }
constexpr int64_t Int4PanelWords(int64_t depth) { return depth / 8 * 16; }

}  // namespace tandem
