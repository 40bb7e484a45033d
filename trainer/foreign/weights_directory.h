// WeightsDirectory: versions of the weights as Hugging Face directories that a foreign server loads
// (stage 9): the trainer's model directory with other weights. The server reads them, so it must see
// the directory under the same path. Used by foreign_server.cc. Thread-compatible.
//
// Memory: one version, while it arrives. Disk: the last two versions; the server may still be
// reading the one before, or fall back on it by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"

namespace tandem::trainer {

class WeightsDirectory {
 public:
  // `model`: where config and tokenizer come from. Versions are directories below `parent`, which is
  // made when the first is written.
  WeightsDirectory(const std::string& model, const std::string& parent);

  // Takes room for a version; what was staged before is dropped.
  void Stage(int64_t version, std::vector<TensorSpec> tensors);
  void Drop();

  // Bytes of a tensor, in any order; a range may come again.
  //   FAILED_PRECONDITION  another version is staged, or none
  //   OUT_OF_RANGE         they end past the tensor, or there is no such tensor
  absl::Status Receive(int64_t version, int64_t tensor, int64_t offset,
                       std::span<const std::byte> bytes);

  // The bytes of a tensor of the staged version; null: there is none of this name.
  const std::string* bytes(const std::string& name) const;

  // Writes the staged version, removes versions before the last two, and returns the path. The
  // digests of what the written file holds are in `written`.
  //   DATA_LOSS  bytes are missing, or the file does not hold `digests` (the tensor is named)
  //   errors of the file system
  absl::StatusOr<std::string> Write(const DigestMap& digests, DigestMap* written);

 private:
  absl::Status CheckWhole() const;
  absl::Status Fill(const std::string& directory) const;
  absl::Status RemoveEarlier() const;

  const std::string model_, parent_;
  int64_t version_ = -1;  // none
  std::vector<TensorSpec> tensors_;
  std::vector<std::string> bytes_;     // [tensors]
  std::vector<int64_t> num_received_;  // [tensors]
};

}  // namespace tandem::trainer
