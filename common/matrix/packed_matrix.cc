#include "common/matrix/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/base/check.h"
#include "common/matrix/e4m3.h"
#include "common/matrix/panel_kernels.h"
#include "common/matrix/quantise.h"
#include "common/matrix/stored_row.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

// Packs the rows of one panel (16, or fewer in the last panel), 16 by 16 words at a time, so that
// both source and panel are accessed in whole cache lines.
template <typename T>
void PackWidePanel(std::span<const T* const> rows, int64_t depth, uint32_t* panel) {
  constexpr int64_t kPerWord = 4 / sizeof(T);
  uint32_t block[16][16] = {};  // [row][word]
  for (int64_t first = 0; first < depth; first += 16 * kPerWord) {
    const int64_t here = std::min(16 * kPerWord, depth - first);
    const int64_t words = (here + kPerWord - 1) / kPerWord;
    for (size_t c = 0; c < rows.size(); ++c) {
      block[c][words - 1] = 0;  // zeroes the half past an odd depth
      std::memcpy(block[c], rows[c] + first, static_cast<size_t>(here) * sizeof(T));
    }
    uint32_t* out = panel + first / kPerWord * 16;
    for (int64_t w = 0; w < words; ++w) {
      for (int64_t c = 0; c < 16; ++c) out[w * 16 + c] = block[c][w];
    }
  }
}

// Rows of these are stored rows (stored_row.h).
template <typename T>
constexpr bool kIsStored = std::is_same_v<T, uint8_t>;

// fp32 values of a row of T.
template <typename T>
const float* AsFloats(const T* row, int64_t depth, std::vector<float>& buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return row;
  } else {
    buffer.resize(static_cast<size_t>(depth));
    for (int64_t k = 0; k < depth; ++k) buffer[static_cast<size_t>(k)] = Bf16ToFloat(row[k]);
    return buffer.data();
  }
}

// Puts a word of every row into a panel, 16 by 16 as PackWidePanel does. words [16][count].
void Interleave(const std::vector<uint32_t>& words, int64_t count, uint32_t* panel) {
  for (int64_t first = 0; first < count; first += 16) {
    const int64_t here = std::min<int64_t>(16, count - first);
    for (int64_t w = 0; w < here; ++w) {
      for (int64_t c = 0; c < 16; ++c) panel[(first + w) * 16 + c] = words[c * count + first + w];
    }
  }
}

// One panel of kBytes from up to 16 rows of weights.
template <typename T>
void PackBytesPanel(std::span<const T* const> rows, int64_t depth, bool is_fp8, uint32_t* panel) {
  const int64_t count = BytesPanelWords(depth) / 16;
  const uint8_t zero = is_fp8 ? 0 : 128;
  std::vector<uint32_t> words(static_cast<size_t>(16 * count), zero * 0x01010101u);
  std::vector<float> floats;
  auto* scales = reinterpret_cast<float*>(panel + BytesPanelWords(depth));
  std::fill_n(scales, 16, 0.0f);
  for (size_t c = 0; c < rows.size(); ++c) {
    auto* bytes = reinterpret_cast<uint8_t*>(words.data() + static_cast<int64_t>(c) * count);
    if constexpr (kIsStored<T>) {
      std::copy_n(rows[c], depth, bytes);
      std::memcpy(scales + c, rows[c] + depth, sizeof(float));
    } else {
      const float* row = AsFloats(rows[c], depth, floats);
      scales[c] = is_fp8 ? QuantiseE4m3(row, depth, bytes)
                         : QuantiseInt8(row, depth, reinterpret_cast<int8_t*>(bytes));
    }
    if (is_fp8) continue;
    for (int64_t k = 0; k < depth; ++k) bytes[k] = static_cast<uint8_t>(bytes[k] + 128);
  }
  Interleave(words, count, panel);
}

// The eight values from `values` on as a word of kInt4 (panel_kernels.h).
uint32_t Int4Word(const int8_t* values) {
  constexpr int kPlaces[8] = {0, 4, 2, 6, 1, 5, 3, 7};  // of the nibbles from the lowest
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) word |= static_cast<uint32_t>(values[kPlaces[i]] + 8) << (4 * i);
  return word;
}

template <typename T>
void PackInt4Panel(std::span<const T* const> rows, int64_t depth, int64_t group, uint32_t* panel) {
  const int64_t count = depth / 8;
  std::vector<uint32_t> words(static_cast<size_t>(16 * count), 0x88888888u);
  std::vector<float> floats;
  std::vector<int8_t> values(static_cast<size_t>(group));
  auto* scales = reinterpret_cast<uint16_t*>(panel + Int4PanelWords(depth));
  std::fill_n(scales, WholeWords(depth, group) * 16, uint16_t{0});
  for (size_t c = 0; c < rows.size(); ++c) {
    const float* row = nullptr;
    if constexpr (!kIsStored<T>) row = AsFloats(rows[c], depth, floats);
    uint32_t* out = words.data() + static_cast<int64_t>(c) * count;
    for (int64_t first = 0; first < depth; first += group) {
      const int64_t here = std::min(group, depth - first);
      uint16_t& scale = scales[first / group * 16 + static_cast<int64_t>(c)];
      if constexpr (kIsStored<T>) {
        LoadInt4(rows[c], first, here, values.data());
        std::memcpy(&scale, rows[c] + depth / 2 + first / group * 2, sizeof(scale));
      } else {
        scale = NearestBf16(QuantiseInt4(row + first, here, values.data()));
      }
      for (int64_t k = 0; k < here; k += 8) out[(first + k) / 8] = Int4Word(values.data() + k);
    }
  }
  Interleave(words, count, panel);
}

}  // namespace

int64_t PackedMatrix::BytesOf(int64_t columns, int64_t depth, bool is_bf16, WeightFormat format) {
  const int64_t panels = WholeWords(columns, kPanelColumns);
  switch (format.scheme) {
    case WeightScheme::kWide:
      return panels * (is_bf16 ? WholeWords(depth, 2) * 64 : depth * 64);
    case WeightScheme::kInt8:
    case WeightScheme::kFp8E4m3:
      return panels * (BytesPanelWords(depth) * 4 + 64);
    case WeightScheme::kInt4Group: {
      const int64_t scales = WholeWords(depth, format.group) * 32;
      return panels * WholeWords(Int4PanelWords(depth) * 4 + scales, 64) * 64;
    }
  }
  return 0;
}

int64_t PackedMatrix::PanelBytes() const { return BytesOf(1, depth_, is_bf16_, format_); }

void PackedMatrix::Reserve(int64_t columns, int64_t depth, bool is_bf16, WeightFormat format) {
  if (columns == columns_ && depth == depth_ && is_bf16 == is_bf16_ && format == format_) return;
  TANDEM_CHECK(CanPack(format.scheme, depth));
  columns_ = columns;
  depth_ = depth;
  is_bf16_ = is_bf16;
  format_ = format;
  panels_ = AlignedBuffer(num_panels() * PanelBytes());
}

template <typename T>
void PackedMatrix::PackRows(std::span<const T* const> rows, int64_t depth, WeightFormat format) {
  Reserve(static_cast<int64_t>(rows.size()), depth, sizeof(T) == 2, format);
  for (int64_t p = 0; p < num_panels(); ++p) {
    const auto of_panel = rows.subspan(p * 16, std::min<int64_t>(16, columns_ - p * 16));
    auto* panel = reinterpret_cast<uint32_t*>(panels_.as<char>() + p * PanelBytes());
    switch (format.scheme) {
      case WeightScheme::kWide:
        if constexpr (!kIsStored<T>) PackWidePanel(of_panel, depth, panel);
        break;
      case WeightScheme::kInt8:
      case WeightScheme::kFp8E4m3:
        PackBytesPanel(of_panel, depth, format.scheme == WeightScheme::kFp8E4m3, panel);
        break;
      case WeightScheme::kInt4Group:
        PackInt4Panel(of_panel, depth, format.group, panel);
        break;
    }
  }
}

void PackedMatrix::Pack(std::span<const float* const> rows, int64_t depth, WeightFormat format) {
  PackRows(rows, depth, format);
}

void PackedMatrix::Pack(std::span<const uint16_t* const> rows, int64_t depth, WeightFormat format) {
  PackRows(rows, depth, format);
}

void PackedMatrix::Pack(std::span<const uint8_t* const> rows, int64_t depth, WeightFormat format) {
  TANDEM_CHECK(format.scheme != WeightScheme::kWide);
  PackRows(rows, depth, format);
}

void PackedMatrix::MultiplyTile(InstructionSet set, int64_t tile, const Operand& x, int64_t rows,
                                float* out, int64_t out_stride, const void* next) const {
  const int64_t first = tile * kTilePanels;
  PanelTask task = {.x = x,
                    .rows = rows,
                    .panels = Panel(first),
                    .num_panels = std::min(kTilePanels, num_panels() - first),
                    .panel_bytes = PanelBytes(),
                    .depth = depth_,
                    .group = format_.group,
                    .out = out,
                    .out_stride = out_stride,
                    .next = static_cast<const char*>(next)};
  task.next_bytes = task.num_panels * task.panel_bytes;
  const bool int4 = format_.scheme == WeightScheme::kInt4Group;
  if (format_.scheme == WeightScheme::kWide) {
    WidePanels(set, is_bf16_, x.type)(task);
  } else if (x.type == OperandType::kInt8) {
    TANDEM_CHECK(format_.scheme != WeightScheme::kFp8E4m3);
    IntegerPanels(set, int4)(task);
  } else if (int4) {
    Int4Panels(set, x.type)(task);
  } else if (rows <= kFewByteRows) {
    FewByteRowsPanels(set, format_.scheme == WeightScheme::kFp8E4m3, x.type)(task);
  } else {
    static thread_local AlignedBuffer unpacked;
    const int64_t unpacked_bytes = WholeWords(depth_, 2) * 64;
    if (unpacked.size() < kTilePanels * unpacked_bytes) {
      unpacked = AlignedBuffer(kTilePanels * unpacked_bytes);
    }
    UnpackBytes(set, format_.scheme == WeightScheme::kFp8E4m3, task, unpacked.as<uint32_t>());
    PanelTask wide = task;
    wide.panels = unpacked.as<char>();
    wide.panel_bytes = unpacked_bytes;
    WidePanels(set, true, x.type)(wide);
    ScaleColumns(set, task);
  }
}

void PackedMatrix::CopyColumn(int64_t column, float* out) const {
  const int64_t lane = column % kPanelColumns;
  const char* panel = Panel(column / kPanelColumns);
  switch (format_.scheme) {
    case WeightScheme::kWide:
      for (int64_t k = 0; k < depth_; ++k) {
        out[k] = is_bf16_ ? Bf16ToFloat(reinterpret_cast<const uint16_t*>(
                                panel)[k / 2 * 32 + lane * 2 + k % 2])
                          : reinterpret_cast<const float*>(panel)[k * 16 + lane];
      }
      return;
    case WeightScheme::kInt8:
    case WeightScheme::kFp8E4m3: {
      const bool is_fp8 = format_.scheme == WeightScheme::kFp8E4m3;
      const float scale = reinterpret_cast<const float*>(panel + BytesPanelWords(depth_) * 4)[lane];
      for (int64_t k = 0; k < depth_; ++k) {
        const auto code = static_cast<uint8_t>(panel[k / 4 * 64 + lane * 4 + k % 4]);
        out[k] = (is_fp8 ? E4m3ToFloat(code) : static_cast<float>(code - 128)) * scale;
      }
      return;
    }
    case WeightScheme::kInt4Group: {
      constexpr int kNibbles[8] = {0, 4, 2, 6, 1, 5, 3, 7};  // of input features k .. k + 7
      const auto* scales = reinterpret_cast<const uint16_t*>(panel + Int4PanelWords(depth_) * 4);
      for (int64_t k = 0; k < depth_; ++k) {
        const uint32_t word = reinterpret_cast<const uint32_t*>(panel)[k / 8 * 16 + lane];
        const int value = static_cast<int>((word >> (4 * kNibbles[k % 8])) & 15u) - 8;
        out[k] = static_cast<float>(value) * Bf16ToFloat(scales[k / format_.group * 16 + lane]);
      }
      return;
    }
  }
}

}  // namespace tandem
