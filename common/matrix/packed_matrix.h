// PackedMatrix: the weight of a linear layer in a layout for the CPU, wide or quantised, and its
// product with a few rows. Free of LibTorch.
//
// Output features are stored in panels of 16, the width of one vector register
// (panel_kernels.h has the layouts). Weights of a quantised matrix (weight_format.h) are held as
// they are stored, and multiplied in one of two ways:
//
//   fp32 and bf16 operands  (weight-only) by the stored values, summed in fp32, and then by the
//                           scale: once per output, or per group of input features
//   int8 operands           integer products in integer sums, which are exact, then scales: the
//                           weight's, per group of kInt4Group, and at last the row's
//
// Every output is summed over k = 0, 1, 2, ..., whatever the number of rows, the position of the
// row, the tile or the thread. A row's result therefore depends on that row and the weights alone,
// as `invariant` and `exact` need. This costs nothing here, because tiles divide rows and columns,
// and never the sum.
//
// Thread-safe while nobody packs. A product may be divided among threads by panels and rows.
#pragma once

#include <cstdint>
#include <span>

#include "common/matrix/operand.h"
#include "common/matrix/weight_format.h"
#include "common/tensor/aligned_buffer.h"
#include "common/tensor/instruction_set.h"

namespace tandem {

class PackedMatrix {
 public:
  static constexpr int64_t kPanelColumns = 16;
  static constexpr int64_t kTilePanels = 2;  // most panels per MultiplyTile

  PackedMatrix() = default;

  // As Pack.
  PackedMatrix(std::span<const float* const> rows, int64_t depth, WeightFormat format = {}) {
    Pack(rows, depth, format);
  }
  PackedMatrix(std::span<const uint16_t* const> rows, int64_t depth, WeightFormat format = {}) {
    Pack(rows, depth, format);
  }

  // Replaces the weights. rows[o] points to the `depth` weights of output feature o (fp32, or bf16
  // bits), which are quantised by `format`; CanPack must allow the depth. The memory is reused if
  // shape and format are unchanged, so that the next version of a model needs no fresh pages.
  void Pack(std::span<const float* const> rows, int64_t depth, WeightFormat format = {});
  void Pack(std::span<const uint16_t* const> rows, int64_t depth, WeightFormat format = {});

  // The same of stored rows (stored_row.h) of a quantised format.
  void Pack(std::span<const uint8_t* const> rows, int64_t depth, WeightFormat format);

  // kInt4Group takes depths in multiples of 8. int8 sums of depths up to 65536 cannot overflow.
  static constexpr bool CanPack(WeightScheme scheme, int64_t depth) {
    return scheme == WeightScheme::kWide ||
           (depth <= 65536 && (scheme != WeightScheme::kInt4Group || depth % 8 == 0));
  }

  // The memory that a matrix takes.
  static int64_t BytesOf(int64_t columns, int64_t depth, bool is_bf16, WeightFormat format);

  int64_t depth() const { return depth_; }
  int64_t columns() const { return columns_; }
  int64_t num_panels() const { return (columns_ + kPanelColumns - 1) / kPanelColumns; }
  int64_t num_tiles() const { return (num_panels() + kTilePanels - 1) / kTilePanels; }
  bool is_bf16() const { return is_bf16_; }  // of a wide matrix
  const WeightFormat& format() const { return format_; }
  int64_t bytes() const { return panels_.size(); }
  // All panels, scales included: what is multiplied, for a digest.
  std::span<const char> stored() const {
    return {panels_.as<char>(), static_cast<size_t>(panels_.size())};
  }

  // Columns of tile t are [t * kTileColumns, (t + 1) * kTileColumns).
  static constexpr int64_t kTileColumns = kTilePanels * kPanelColumns;

  // out[r][0 .. kTileColumns) = the tile's outputs for row r, with rows `out_stride` floats apart.
  // Columns past the last one of the matrix are set to 0 up to the end of the last panel; panels
  // past the last one are not written. A bf16 operand needs a bf16 or quantised matrix, an even
  // depth and `set` kAvx512Bf16; an int8 operand needs an int8 or int4 matrix. If `next` is not
  // null, this prefetches as many bytes from `next` as the tile has: it should point to the weights
  // that are needed next.
  void MultiplyTile(InstructionSet set, int64_t tile, const Operand& x, int64_t rows, float* out,
                    int64_t out_stride, const void* next = nullptr) const;

  // The address at which tile `tile` begins.
  const void* TileAddress(int64_t tile) const { return Panel(tile * kTilePanels); }

  // Copies the weights of output feature `column`, [depth], as they are meant: stored value times
  // scale. This is a row of the embedding when head and embedding share one matrix.
  void CopyColumn(int64_t column, float* out) const;

 private:
  template <typename T>
  void PackRows(std::span<const T* const> rows, int64_t depth, WeightFormat format);
  void Reserve(int64_t columns, int64_t depth, bool is_bf16, WeightFormat format);
  int64_t PanelBytes() const;  // of one panel
  const char* Panel(int64_t panel) const { return panels_.as<char>() + panel * PanelBytes(); }

  int64_t depth_ = 0, columns_ = 0;
  bool is_bf16_ = false;
  WeightFormat format_;
  AlignedBuffer panels_;
};

}  // namespace tandem
