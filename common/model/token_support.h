// PackedSupport: the support of one token, i.e. the ids that the sampling filters left, in few
// bytes. As plain ids the support takes up to 4 V bytes per token (0.6 MB at V = 151 936). Packed,
// it takes at most about V / 8 bytes, and usually one or two bytes per id.
//
// The support itself is sent, exactly, because the trainer cannot rebuild it from a threshold: it
// is a function of the server's logits, and the trainer's logits differ in their last bits.
//
// Format: a byte that names the coding, the number of ids as a varint (LEB128), then the shortest
// coding for these ids:
//   1 gaps    for each id, its distance from the one before (from -1 for the first), less one
//   2 runs    for each run of consecutive ids, that distance, and the run's length less one
//   3 bitmap  the first id, then one bit per id from there on, lowest bit of a byte first
// No bytes at all mean that no id was left out.
//
// Free of LibTorch and protobuf; pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tandem {

// Ids are below this limit. It exceeds every vocabulary and bounds the cost of unpacking.
inline constexpr int64_t kMostIds = int64_t{1} << 24;

class PackedSupport {
 public:
  PackedSupport() = default;  // all ids

  // Packs rising ids in [0, kMostIds). No ids mean all ids.
  explicit PackedSupport(std::span<const int32_t> rising_ids);

  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }
  int64_t num_ids() const;
  std::vector<int32_t> ids() const;

  friend bool operator==(const PackedSupport&, const PackedSupport&) = default;

 private:
  std::string bytes_;
};

// Unpacks untrusted bytes of a PackedSupport and appends the ids to `ids`. `vocabulary` is at most
// kMostIds.
//   INVALID_ARGUMENT  the bytes are truncated, too long or of an unknown coding, or an id is not
//                     below `vocabulary`; the ids appended so far are then garbage
absl::Status UnpackSupport(std::string_view bytes, int64_t vocabulary, std::vector<int32_t>* ids);

// A view of a token's support, as ids or packed. It copies nothing; the source must outlive it.
class SupportView {
 public:
  SupportView() = default;                                               // all ids
  SupportView(std::span<const int32_t> ids) : ids_(ids) {}               // NOLINT: a view
  SupportView(const std::vector<int32_t>& ids) : ids_(ids) {}            // NOLINT: a view
  SupportView(const PackedSupport& packed) : packed_(packed.bytes()) {}  // NOLINT: a view
  static SupportView OfBytes(std::string_view checked) {  // that UnpackSupport accepts
    SupportView view;
    view.packed_ = checked;
    return view;
  }

  bool empty() const { return ids_.empty() && packed_.empty(); }

  // Appends the rising ids.
  void AppendTo(std::vector<int32_t>* ids) const;

 private:
  std::span<const int32_t> ids_;
  std::string_view packed_;
};

}  // namespace tandem
