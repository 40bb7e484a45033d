// Safetensors: a reader, which maps files and checks every offset, and a writer, which is atomic.
// Free of LibTorch.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

struct SafetensorsFile {
  std::vector<HostTensor> tensors;              // in the order of their data
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Maps one file; the tensors point into the mapping.
//   NOT_FOUND         no such file
//   INVALID_ARGUMENT  "PATH: ...": the header is longer than the file or 100 MB, is not JSON or
//                     nests deeper than 8; unknown dtype; negative or overflowing shape; offsets
//                     outside the data, overlapping or leaving holes; size and shape differ; a name
//                     occurs twice; the file is a pickle (the message says how to convert it)
absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path);

// Reads model.safetensors, or the shards of model.safetensors.index.json, from a Hugging Face
// directory.
//   NOT_FOUND         neither exists (the message names a pytorch_model.bin and how to convert it)
//   INVALID_ARGUMENT  as above; a tensor of the index is missing from its shard; the index names a
//                     file outside the directory
absl::StatusOr<std::vector<HostTensor>> ReadModelTensors(const std::string& directory);

// Writes `tensors` in the given order, atomically, and adds {"format": "pt"} to the metadata.
absl::Status WriteSafetensors(const std::string& path, std::span<const HostTensor> tensors,
                              const std::map<std::string, std::string>& metadata = {});

// The same for tensors that are loaded one after the other, in the given order; one is in memory at
// a time. An error of `read`, with any code, is returned and nothing is written.
absl::Status WriteSafetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem
