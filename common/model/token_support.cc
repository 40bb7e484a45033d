#include "common/model/token_support.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

enum Coding : char { kGaps = 1, kRuns = 2, kBitmap = 3 };

// The number of bytes of `value` as a varint.
size_t VarintSize(uint32_t value) {
  size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

void AppendVarint(uint32_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// Calls visit(ids skipped before it, its length) for each run of consecutive ids.
template <typename Visit>
void ForEachRun(std::span<const int32_t> ids, const Visit& visit) {
  int32_t before = -1;
  for (size_t begin = 0; begin < ids.size();) {
    size_t end = begin + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    visit(static_cast<uint32_t>(ids[begin] - before - 1), static_cast<uint32_t>(end - begin));
    before = ids[end - 1];
    begin = end;
  }
}

std::string BitmapOf(std::span<const int32_t> ids) {
  std::string bits(static_cast<size_t>(ids.back() - ids.front()) / 8 + 1, '\0');
  for (const int32_t id : ids) {
    const auto at = static_cast<uint32_t>(id - ids.front());
    bits[at / 8] = static_cast<char>(bits[at / 8] | (1 << (at % 8)));
  }
  return bits;
}

// Reads the coding; the functions return false where the bytes end too early.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  bool Byte(uint8_t* value) {
    if (bytes_.empty()) return false;
    *value = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return true;
  }

  bool Varint(int64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      uint8_t byte = 0;
      if (!Byte(&byte)) return false;
      *value |= static_cast<int64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

absl::Status Malformed(const char* what) {
  return InvalidArgument("a packed support ", what,
                         ": it was changed on the way, or comes from a newer "
                         "server");
}

// Appends consecutive ids. Fails past the end of the vocabulary and beyond the number of ids that
// was announced.
bool AppendRun(int64_t first, int64_t length, int64_t vocabulary, size_t most,
               std::vector<int32_t>* ids) {
  if (first + length > vocabulary || ids->size() + static_cast<size_t>(length) > most) return false;
  for (int64_t id = first; id < first + length; ++id) ids->push_back(static_cast<int32_t>(id));
  return true;
}

bool ReadRuns(Reader& reader, bool with_lengths, int64_t vocabulary, size_t end,
              std::vector<int32_t>* ids) {
  int64_t next = 0;
  while (ids->size() < end) {
    int64_t gap = 0, more = 0;
    if (!reader.Varint(&gap) || (with_lengths && !reader.Varint(&more))) return false;
    if (!AppendRun(next + gap, more + 1, vocabulary, end, ids)) return false;
    next += gap + more + 1;
  }
  return true;
}

bool ReadBitmap(Reader& reader, int64_t vocabulary, size_t end, std::vector<int32_t>* ids) {
  int64_t base = 0;
  if (!reader.Varint(&base)) return false;
  for (uint8_t bits = 0; reader.Byte(&bits); base += 8) {
    for (int bit = 0; bit < 8; ++bit) {
      if ((bits >> bit & 1) != 0 && !AppendRun(base + bit, 1, vocabulary, end, ids)) return false;
    }
  }
  return ids->size() == end;
}

}  // namespace

PackedSupport::PackedSupport(std::span<const int32_t> ids) {
  if (ids.empty()) return;
  size_t gaps = 0, runs = 0;
  ForEachRun(ids, [&](uint32_t skipped, uint32_t length) {
    gaps += VarintSize(skipped) + length - 1;
    runs += VarintSize(skipped) + VarintSize(length - 1);
  });
  const size_t bitmap = VarintSize(static_cast<uint32_t>(ids.front())) +
                        static_cast<size_t>(ids.back() - ids.front()) / 8 + 1;
  const size_t least = std::min({gaps, runs, bitmap});
  const Coding coding = least == gaps ? kGaps : least == runs ? kRuns : kBitmap;
  bytes_.reserve(least + 1 + VarintSize(static_cast<uint32_t>(ids.size())));
  bytes_.push_back(coding);
  AppendVarint(static_cast<uint32_t>(ids.size()), bytes_);
  if (coding == kBitmap) {
    AppendVarint(static_cast<uint32_t>(ids.front()), bytes_);
    bytes_ += BitmapOf(ids);
    return;
  }
  ForEachRun(ids, [&](uint32_t skipped, uint32_t length) {
    AppendVarint(skipped, bytes_);
    if (coding == kRuns) {
      AppendVarint(length - 1, bytes_);
    } else {
      bytes_.append(length - 1, '\0');
    }
  });
}

int64_t PackedSupport::num_ids() const {
  if (bytes_.empty()) return 0;
  Reader reader(std::string_view(bytes_).substr(1));
  int64_t count = 0;
  TANDEM_CHECK(reader.Varint(&count));
  return count;
}

std::vector<int32_t> PackedSupport::ids() const {
  std::vector<int32_t> ids;
  SupportView(*this).AppendTo(&ids);
  return ids;
}

absl::Status UnpackSupport(std::string_view bytes, int64_t vocabulary, std::vector<int32_t>* ids) {
  if (bytes.empty()) return absl::OkStatus();
  TANDEM_CHECK(vocabulary <= kMostIds);
  Reader reader(bytes);
  uint8_t coding = 0;
  int64_t count = 0;
  if (!reader.Byte(&coding) || !reader.Varint(&count)) return Malformed("is cut off");
  if (count < 1 || count > vocabulary) return Malformed("has more ids than the vocabulary");
  const size_t end = ids->size() + static_cast<size_t>(count);
  ids->reserve(end);
  bool good = false;
  if (coding == kGaps || coding == kRuns) {
    good = ReadRuns(reader, coding == kRuns, vocabulary, end, ids);
  } else if (coding == kBitmap) {
    good = ReadBitmap(reader, vocabulary, end, ids);
  } else {
    return Malformed("is of no known coding");
  }
  if (!good || !reader.at_end()) return Malformed("does not have the ids it announces");
  return absl::OkStatus();
}

void SupportView::AppendTo(std::vector<int32_t>* ids) const {
  ids->insert(ids->end(), ids_.begin(), ids_.end());
  TANDEM_CHECK(UnpackSupport(packed_, kMostIds, ids).ok());
}

}  // namespace tandem
