// PackedMatrix: the weight of a linear layer laid out for the CPU, and its product with a few rows.
// Free of LibTorch.
//
// Output features stand in panels of 16, one vector register wide. A panel is [depth][16] floats,
// or for bf16 [depth / 2][16] words, each holding input features k (low half) and k + 1 of one
// output feature: the layout that both a shift-and-multiply and the processors' bf16 instructions
// read as it is.
//
// Every output is summed in fp32 over k = 0, 1, 2, ..., whatever the number of rows, the place of
// the row, the tile or the thread. A row's result hence depends on that row and the weights alone,
// which is what `invariant` and `exact` need, and costs nothing here: tiles block rows and columns,
// never the sum.
//
// Thread-safe while nobody packs; a product may be shared out over threads by panels and rows.
#ifndef TANDEM_COMMON_TENSOR_PACKED_MATRIX_H_
#define TANDEM_COMMON_TENSOR_PACKED_MATRIX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/tensor/aligned_buffer.h"
#include "common/tensor/instruction_set.h"

namespace tandem {

// How rows to be multiplied are stored.
enum class OperandType { kFp32, kBf16 };

constexpr int64_t OperandBytes(OperandType type) { return type == OperandType::kFp32 ? 4 : 2; }

// What a bf16 matrix wants its rounded inputs in: bf16 where the machine multiplies it, else fp32.
OperandType RoundedOperandType(InstructionSet set);

// Writes `row` [n] as an operand. kBf16 rounds to nearest even; kFp32 does so too when `round`.
void StoreOperand(InstructionSet set, const float* row, int64_t n, bool round, OperandType type,
                  void* out);

// Rows [n, depth] at `stride` elements.
struct Operand {
  OperandType type = OperandType::kFp32;
  const void* data = nullptr;
  int64_t stride = 0;
};

class PackedMatrix {
 public:
  static constexpr int64_t kPanelColumns = 16;
  static constexpr int64_t kTilePanels = 2;  // panels of one Multiply at most

  PackedMatrix() = default;

  // rows[o] points to the `depth` weights of output feature o (fp32, or bf16 bits).
  PackedMatrix(std::span<const float* const> rows, int64_t depth) { Pack(rows, depth); }
  PackedMatrix(std::span<const uint16_t* const> rows, int64_t depth) { Pack(rows, depth); }

  // Takes new weights. The memory stays where the shape and the type are those of before: the next
  // version of a model then costs no fresh pages.
  void Pack(std::span<const float* const> rows, int64_t depth);
  void Pack(std::span<const uint16_t* const> rows, int64_t depth);

  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  int64_t num_panels() const { return (columns_ + kPanelColumns - 1) / kPanelColumns; }
  int64_t num_tiles() const { return (num_panels() + kTilePanels - 1) / kTilePanels; }
  bool is_bf16() const { return is_bf16_; }
  int64_t bytes() const { return panels_.size(); }

  // Columns of tile t are [t * kTileColumns, TileEnd(t)).
  static constexpr int64_t kTileColumns = kTilePanels * kPanelColumns;

  // out[r][0 .. kTileColumns) = the tile's outputs of row r, at `out_stride` floats; columns behind
  // the matrix's last come out as 0 up to the end of the last panel, panels behind the last are not
  // written. A bf16 operand needs a bf16 matrix, an even depth and `set` kAvx512Bf16. `next`, if
  // not null, is where the weights wanted after these begin: as many bytes as this tile has are
  // fetched.
  void MultiplyTile(InstructionSet set, int64_t tile, const Operand& x, int64_t rows, float* out,
                    int64_t out_stride, const void* next = nullptr) const;

  // Where tile `tile` begins.
  const void* TileAddress(int64_t tile) const { return Panel(tile * kTilePanels); }

  // The weights of output feature `column`, [depth]: an embedding's row when head and embedding
  // share one matrix.
  void CopyColumn(int64_t column, float* out) const;

 private:
  void Reserve(int64_t columns, int64_t depth, bool is_bf16);
  const void* Panel(int64_t panel) const;

  int64_t depth_ = 0, columns_ = 0;
  bool is_bf16_ = false;
  AlignedBuffer panels_;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_TENSOR_PACKED_MATRIX_H_
