// Weights of a model that may be given as an adapter: a PEFT directory names a base, and its model is
// that base with the adapter merged in. Checkpoints of a run that trains adapters are such
// directories. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// The directory of the weights that `directory` is based on: itself, or for a PEFT directory the base
// that it names: a path, from the current directory or the PEFT directory itself, or a name in the
// Hub's cache.
//   NOT_FOUND, INVALID_ARGUMENT  of adapter_config.json;  NOT_FOUND  the base is not there (named)
absl::StatusOr<std::string> BaseDirectory(const std::string& directory);

// ReadModelTensors; of a PEFT directory those of its base, and the adapted weights in F32 with the
// adapter merged in (MergeLora). `base_dtype`: the base's values are first cast to the nearest of that
// dtype, as a server of it holds them before it merges.
//   errors of ReadModelTensors, BaseDirectory, ReadModelConfig and ReadPeftDirectory
absl::StatusOr<std::vector<HostTensor>> ReadAdaptedTensors(const std::string& directory,
                                                           std::optional<DType> base_dtype = {});

// Merges an adapter in PEFT's layout into a base's tensors, which stay where it has no part.
struct LoraAdapter;
absl::StatusOr<std::vector<HostTensor>> MergeAdapter(const LoraAdapter& adapter,
                                                     std::vector<HostTensor> base);

}  // namespace tandem
