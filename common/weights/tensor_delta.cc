#include "common/weights/tensor_delta.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/base/status_macros.h"

// Differences are taken between bit patterns and not between values, so that adding one restores
// the next version's bits exactly, for every dtype of that width. For values of one sign,
// neighbouring floats have neighbouring bit patterns, so small updates give small differences,
// which zigzag and LEB128 (as in Protocol Buffers) store in one byte.
//
// Invariant: every decoder visits elements in rising order, each at most once, and checks a number
// before it uses it. CheckDelta runs the same decoder as AddDelta, without effects, so a delta that
// passed it cannot fail half way through a tensor that is being changed in place.
namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little,
              "differences are sent as they lie in memory");

template <typename Word>
Word Load(const std::byte* bytes, int64_t element) {
  Word word;
  std::memcpy(&word, bytes + element * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
  return word;
}

template <typename Word>
void Store(std::byte* bytes, int64_t element, Word word) {
  std::memcpy(bytes + element * static_cast<int64_t>(sizeof(Word)), &word, sizeof(Word));
}

void AppendVarint(uint64_t value, std::vector<std::byte>& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::byte>(value | 0x80));
  out.push_back(static_cast<std::byte>(value));
}

template <typename Word>
uint64_t ZigZag(Word difference) {
  using Signed = std::make_signed_t<Word>;
  const auto value = static_cast<Signed>(difference);
  return static_cast<Word>(static_cast<Word>(difference << 1) ^
                           static_cast<Word>(value < 0 ? Word(-1) : Word(0)));
}

template <typename Word>
Word UnZigZag(uint64_t code) {
  const auto word = static_cast<Word>(code);
  return static_cast<Word>((word >> 1) ^ static_cast<Word>(-(word & 1)));
}

// Calls visit(element, difference) for every changed element, in order, until it returns false.
template <typename Word, typename Visit>
void VisitChanges(const std::byte* base, const std::byte* tensor, int64_t count,
                  const Visit& visit) {
  constexpr int64_t kStride = 8 / sizeof(Word);
  for (int64_t first = 0; first < count; first += kStride) {
    const int64_t end = std::min(first + kStride, count);
    // Compares eight bytes at a time, since most elements did not change.
    if (end - first == kStride &&
        Load<uint64_t>(base, first / kStride) == Load<uint64_t>(tensor, first / kStride)) {
      continue;
    }
    for (int64_t i = first; i < end; ++i) {
      const auto difference = static_cast<Word>(Load<Word>(tensor, i) - Load<Word>(base, i));
      if (difference != 0 && !visit(i, difference)) return;
    }
  }
}

template <typename Word>
TensorDelta MakeGaps(const std::byte* base, const std::byte* tensor, int64_t count) {
  const auto dense_bytes = static_cast<size_t>(count) * sizeof(Word);
  TensorDelta delta{.encoding = TensorEncoding::kGaps};
  int64_t next = 0;
  VisitChanges<Word>(base, tensor, count, [&](int64_t element, Word difference) {
    AppendVarint(static_cast<uint64_t>(element - next), delta.bytes);
    AppendVarint(ZigZag(difference), delta.bytes);
    next = element + 1;
    ++delta.num_changed;
    return delta.bytes.size() < dense_bytes;
  });
  return delta;
}

template <typename Word>
TensorDelta MakeMask(const std::byte* base, const std::byte* tensor, int64_t count) {
  TensorDelta delta{.encoding = TensorEncoding::kMask};
  delta.bytes.resize(static_cast<size_t>((count + 7) / 8));
  VisitChanges<Word>(base, tensor, count, [&](int64_t element, Word difference) {
    delta.bytes[static_cast<size_t>(element / 8)] |= std::byte{1} << (element % 8);
    const size_t end = delta.bytes.size();
    delta.bytes.resize(end + sizeof(Word));
    Store(delta.bytes.data() + end, 0, difference);
    ++delta.num_changed;
    return true;
  });
  return delta;
}

template <typename Word>
TensorDelta MakeSmallest(const HostTensor& base, const HostTensor& tensor) {
  const int64_t count = tensor.spec.num_elements();
  TensorDelta gaps = MakeGaps<Word>(base.bytes.data(), tensor.bytes.data(), count);
  const size_t dense_bytes = tensor.bytes.size();
  const bool whole = gaps.bytes.size() < dense_bytes;
  const size_t mask_bytes = static_cast<size_t>((count + 7) / 8 + gaps.num_changed * sizeof(Word));
  if (whole && gaps.bytes.size() <= mask_bytes) return gaps;
  // If the gaps were abandoned half way, num_changed is a lower bound, and so is the size of the
  // mask.
  if (mask_bytes < dense_bytes) {
    TensorDelta mask = MakeMask<Word>(base.bytes.data(), tensor.bytes.data(), count);
    if (mask.bytes.size() < dense_bytes) return mask;
  }
  return {.num_changed = gaps.num_changed};
}

// Reads LEB128 numbers; `ok` becomes false at one that is truncated or longer than 64 bits.
struct VarintReader {
  std::span<const std::byte> bytes;
  size_t at = 0;
  bool ok = true;

  bool done() const { return at == bytes.size(); }
  uint64_t Next() {
    uint64_t value = 0;
    for (int shift = 0; at < bytes.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<uint64_t>(bytes[at++]);
      if (shift == 63 && byte > 1) break;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok = false;
    return 0;
  }
};

absl::Status Damaged(const TensorSpec& spec, const char* how) {
  return DataLoss("the delta of ", spec.name, " ", how);
}

// Calls visit(element, difference) in order. Stops with an error at bytes that are not a delta.
template <typename Word, typename Visit>
absl::Status VisitGaps(const TensorSpec& spec, std::span<const std::byte> delta,
                       const Visit& visit) {
  const auto count = static_cast<uint64_t>(spec.num_elements());
  uint64_t next = 0;
  for (VarintReader read{delta}; !read.done();) {
    const uint64_t gap = read.Next();
    const uint64_t code = read.Next();
    if (!read.ok) return Damaged(spec, "ends within a number");
    if (code > static_cast<Word>(-1)) return Damaged(spec, "has a difference too large");
    if (next >= count || gap >= count - next) return Damaged(spec, "goes past the last element");
    visit(static_cast<int64_t>(next + gap), UnZigZag<Word>(code));
    next += gap + 1;
  }
  return absl::OkStatus();
}

template <typename Word, typename Visit>
absl::Status VisitMask(const TensorSpec& spec, std::span<const std::byte> delta,
                       const Visit& visit) {
  const int64_t count = spec.num_elements();
  const auto mask_bytes = static_cast<size_t>((count + 7) / 8);
  if (delta.size() < mask_bytes) return Damaged(spec, "is shorter than its mask");
  const std::span<const std::byte> differences = delta.subspan(mask_bytes);
  const auto num_given = static_cast<int64_t>(differences.size() / sizeof(Word));
  int64_t taken = 0;
  for (size_t byte = 0; byte < mask_bytes; ++byte) {
    for (auto bits = static_cast<uint8_t>(delta[byte]); bits != 0; bits &= bits - 1) {
      const int64_t element = static_cast<int64_t>(byte) * 8 + std::countr_zero(bits);
      if (element >= count) return Damaged(spec, "goes past the last element");
      if (taken == num_given) return Damaged(spec, "has fewer differences than its mask says");
      visit(element, Load<Word>(differences.data(), taken++));
    }
  }
  if (static_cast<size_t>(taken) * sizeof(Word) != differences.size()) {
    return Damaged(spec, "has more differences than its mask says");
  }
  return absl::OkStatus();
}

template <typename Word, typename Visit>
absl::Status VisitDelta(TensorEncoding encoding, const TensorSpec& spec,
                        std::span<const std::byte> delta, const Visit& visit) {
  return encoding == TensorEncoding::kGaps ? VisitGaps<Word>(spec, delta, visit)
                                           : VisitMask<Word>(spec, delta, visit);
}

template <typename Word>
void Change(TensorEncoding encoding, const TensorSpec& spec, std::span<const std::byte> delta,
            std::span<std::byte> tensor, bool add) {
  const absl::Status visited =
      VisitDelta<Word>(encoding, spec, delta, [&](int64_t element, Word difference) {
        const auto before = Load<Word>(tensor.data(), element);
        Store(tensor.data(), element,
              static_cast<Word>(add ? before + difference : before - difference));
      });
  TANDEM_CHECK(visited.ok());
}

void Change(TensorEncoding encoding, const TensorSpec& spec, std::span<const std::byte> delta,
            std::span<std::byte> tensor, bool add) {
  TANDEM_CHECK(static_cast<int64_t>(tensor.size()) == spec.num_bytes());
  switch (DTypeBytes(spec.dtype)) {
    case 1:
      return Change<uint8_t>(encoding, spec, delta, tensor, add);
    case 2:
      return Change<uint16_t>(encoding, spec, delta, tensor, add);
    default:
      return Change<uint32_t>(encoding, spec, delta, tensor, add);
  }
}

}  // namespace

std::string_view TensorEncodingName(TensorEncoding encoding) {
  constexpr std::string_view kNames[] = {"dense", "mask", "gaps"};
  return kNames[static_cast<size_t>(encoding)];
}

TensorDelta MakeDelta(const HostTensor& base, const HostTensor& tensor) {
  if (base.spec != tensor.spec) return {};
  switch (DTypeBytes(tensor.spec.dtype)) {
    case 1:
      return MakeSmallest<uint8_t>(base, tensor);
    case 2:
      return MakeSmallest<uint16_t>(base, tensor);
    case 4:
      return MakeSmallest<uint32_t>(base, tensor);
    default:
      return {};
  }
}

absl::Status CheckDelta(TensorEncoding encoding, const TensorSpec& spec,
                        std::span<const std::byte> delta) {
  const int64_t width = DTypeBytes(spec.dtype);
  if (encoding != TensorEncoding::kDense) {
    if (width == 1) return VisitDelta<uint8_t>(encoding, spec, delta, [](int64_t, uint8_t) {});
    if (width == 2) return VisitDelta<uint16_t>(encoding, spec, delta, [](int64_t, uint16_t) {});
    if (width == 4) return VisitDelta<uint32_t>(encoding, spec, delta, [](int64_t, uint32_t) {});
  }
  return InvalidArgument("no delta of ", spec.ToString(), " in encoding ",
                         TensorEncodingName(encoding));
}

void AddDelta(TensorEncoding encoding, const TensorSpec& spec, std::span<const std::byte> delta,
              std::span<std::byte> tensor) {
  Change(encoding, spec, delta, tensor, /*add=*/true);
}

void SubtractDelta(TensorEncoding encoding, const TensorSpec& spec,
                   std::span<const std::byte> delta, std::span<std::byte> tensor) {
  Change(encoding, spec, delta, tensor, /*add=*/false);
}

}  // namespace tandem
