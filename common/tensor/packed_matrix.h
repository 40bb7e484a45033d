// PackedMatrix: the weight of a linear layer in a layout for the CPU, and its product with a few
// rows. Free of LibTorch.
//
// Output features are stored in panels of 16, the width of one vector register. A panel is
// [depth][16] floats, or for bf16 [depth / 2][16] words, each with input features k (low half) and
// k + 1 of one output feature. Both a shift-and-multiply and the processor's bf16 instructions can
// read that layout directly.
//
// Every output is summed in fp32 over k = 0, 1, 2, ..., whatever the number of rows, the position
// of the row, the tile or the thread. A row's result therefore depends on that row and the weights
// alone, as `invariant` and `exact` need. This costs nothing here, because tiles divide rows and
// columns, and never the sum.
//
// Thread-safe while nobody packs. A product may be divided among threads by panels and rows.
#pragma once

#include <cstdint>
#include <span>

#include "common/tensor/aligned_buffer.h"
#include "common/tensor/instruction_set.h"

namespace tandem {

// The storage type of the rows that are multiplied.
enum class OperandType { kFp32, kBf16 };

constexpr int64_t OperandBytes(OperandType type) { return type == OperandType::kFp32 ? 4 : 2; }

// The operand type for inputs of a bf16 matrix: bf16 if the machine has instructions for it, else
// fp32.
OperandType RoundedOperandType(InstructionSet set);

// Writes `row` [n] as an operand. kBf16 rounds to nearest even; kFp32 does so too if `round` is
// set.
void StoreOperand(InstructionSet set, const float* row, int64_t n, bool round, OperandType type,
                  void* out);

// Rows [n, depth], `stride` elements apart.
struct Operand {
  OperandType type = OperandType::kFp32;
  const void* data = nullptr;
  int64_t stride = 0;
};

class PackedMatrix {
 public:
  static constexpr int64_t kPanelColumns = 16;
  static constexpr int64_t kTilePanels = 2;  // most panels per MultiplyTile

  PackedMatrix() = default;

  // rows[o] points to the `depth` weights of output feature o (fp32, or bf16 bits).
  PackedMatrix(std::span<const float* const> rows, int64_t depth) { Pack(rows, depth); }
  PackedMatrix(std::span<const uint16_t* const> rows, int64_t depth) { Pack(rows, depth); }

  // Replaces the weights. The memory is reused if shape and type are unchanged, so that the next
  // version of a model needs no fresh pages.
  void Pack(std::span<const float* const> rows, int64_t depth);
  void Pack(std::span<const uint16_t* const> rows, int64_t depth);

  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  int64_t num_panels() const { return (columns_ + kPanelColumns - 1) / kPanelColumns; }
  int64_t num_tiles() const { return (num_panels() + kTilePanels - 1) / kTilePanels; }
  bool is_bf16() const { return is_bf16_; }
  int64_t bytes() const { return panels_.size(); }

  // Columns of tile t are [t * kTileColumns, (t + 1) * kTileColumns).
  static constexpr int64_t kTileColumns = kTilePanels * kPanelColumns;

  // out[r][0 .. kTileColumns) = the tile's outputs for row r, with rows `out_stride` floats apart.
  // Columns past the last one of the matrix are set to 0 up to the end of the last panel; panels
  // past the last one are not written. A bf16 operand needs a bf16 matrix, an even depth and `set`
  // kAvx512Bf16. If `next` is not null, this prefetches as many bytes from `next` as the tile has:
  // it should point to the weights that are needed next.
  void MultiplyTile(InstructionSet set, int64_t tile, const Operand& x, int64_t rows, float* out,
                    int64_t out_stride, const void* next = nullptr) const;

  // The address at which tile `tile` begins.
  const void* TileAddress(int64_t tile) const { return Panel(tile * kTilePanels); }

  // Copies the weights of output feature `column`, [depth]. This is a row of the embedding when
  // head and embedding share one matrix.
  void CopyColumn(int64_t column, float* out) const;

 private:
  void Reserve(int64_t columns, int64_t depth, bool is_bf16);
  const void* Panel(int64_t panel) const;

  int64_t depth_ = 0, columns_ = 0;
  bool is_bf16_ = false;
  AlignedBuffer panels_;
};

}  // namespace tandem
