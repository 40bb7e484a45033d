// Safetensors: reader (mapped, every offset checked) and writer (atomic). Free of LibTorch.
#ifndef TANDEM_COMMON_MODEL_SAFETENSORS_H_
#define TANDEM_COMMON_MODEL_SAFETENSORS_H_

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/tensor_source.h"
#include "common/weights/host_tensor.h"

namespace tandem {

struct SafetensorsFile {
  std::vector<HostTensor> tensors;              // in the order of their data
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Maps one file; tensors point into the mapping.
//   NOT_FOUND         no such file
//   INVALID_ARGUMENT  "PATH: ..." header length over the file or over 100 MB, JSON that does not
//                     parse or nests deeper than 8, unknown dtype, negative or overflowing shape,
//                     offsets outside the data, overlapping or leaving holes, size and shape that
//                     differ, a name twice; a pickle file (message names the fix)
absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path);

// model.safetensors, or the shards of model.safetensors.index.json, of a Hugging Face directory.
//   NOT_FOUND         neither is there (a pytorch_model.bin is named, with how to convert it)
//   INVALID_ARGUMENT  as above; a tensor the index names is missing from its shard; the index names
//                     a file outside the directory
absl::StatusOr<std::vector<HostTensor>> ReadModelTensors(const std::string& directory);

// Writes `tensors` in the given order; metadata gets {"format": "pt"} added. Atomic.
absl::Status WriteSafetensors(const std::string& path, std::span<const HostTensor> tensors,
                              const std::map<std::string, std::string>& metadata = {});

// The same of tensors that are read one after the other, in the given order, one held at a time.
//   any code of read, and nothing is written
absl::Status WriteSafetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem

#endif  // TANDEM_COMMON_MODEL_SAFETENSORS_H_
