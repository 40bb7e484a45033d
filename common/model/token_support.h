// PackedSupport: the ids one token was drawn from when the sampler's filters left out others, in
// few bytes. As plain ids they are up to 4 V bytes a token (0.6 MB at V = 151 936); packed they are
// at most V / 8 and a few, and usually a byte or two an id.
//
// The trainer cannot rebuild the set from a threshold: the set is a function of the server's
// logits, and the trainer's differ in their last bits. So the set itself travels, exactly.
//
// Form: a byte that names the coding, the number of ids as a varint (LEB128), then the coding that
// is shortest for these ids:
//   1 gaps    for each id the distance from the one before (from -1 for the first), less one
//   2 runs    for each run of consecutive ids the distance as above, and its length less one
//   3 bitmap  the first id, then a bit for each id from there, the lowest bit of a byte first
// No bytes at all: nothing was left out.
//
// Free of LibTorch and protobuf; pure.
#ifndef TANDEM_COMMON_MODEL_TOKEN_SUPPORT_H_
#define TANDEM_COMMON_MODEL_TOKEN_SUPPORT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tandem {

// Ids are below this: more than any vocabulary has, and what unpacking may cost at most.
inline constexpr int64_t kMostIds = int64_t{1} << 24;

class PackedSupport {
 public:
  PackedSupport() = default;  // all ids

  // Of rising ids in [0, kMostIds); none: all ids.
  explicit PackedSupport(std::span<const int32_t> rising_ids);

  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }
  int64_t num_ids() const;
  std::vector<int32_t> ids() const;

  friend bool operator==(const PackedSupport&, const PackedSupport&) = default;

 private:
  std::string bytes_;
};

// The ids behind the bytes of a PackedSupport that came from elsewhere, appended to `ids`.
//   INVALID_ARGUMENT  the bytes are cut off, too long, or of no known coding; an id is not below
//                     `vocabulary`, which is at most kMostIds. What was appended by then is
//                     garbage.
absl::Status UnpackSupport(std::string_view bytes, int64_t vocabulary, std::vector<int32_t>* ids);

// A token's support where it lies: as ids, or packed. Copies nothing; what it was made from must
// outlive it.
class SupportView {
 public:
  SupportView() = default;                                               // all ids
  SupportView(std::span<const int32_t> ids) : ids_(ids) {}               // NOLINT: a view
  SupportView(const std::vector<int32_t>& ids) : ids_(ids) {}            // NOLINT: a view
  SupportView(const PackedSupport& packed) : packed_(packed.bytes()) {}  // NOLINT: a view
  static SupportView OfBytes(std::string_view checked) {                 // that UnpackSupport takes
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

#endif  // TANDEM_COMMON_MODEL_TOKEN_SUPPORT_H_
