// A checkpoint of a run as a Hugging Face directory. `tandem export` uses it; free of LibTorch.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem::cli {

//   ALREADY_EXISTS  `directory` holds a config.json
absl::Status CheckNoModelAt(const std::string& directory);

// Writes a Hugging Face directory: `tensors` (ModelTensors order, any float dtype) as `dtype` (kF32
// or kBF16, dithered as a push is), the tokenizer's files of `tokenizer_from`, config.json last.
//   ALREADY_EXISTS  `out` holds a config.json
absl::Status WriteModelDirectory(const ModelConfig& config, std::vector<HostTensor> tensors,
                                 const std::string& tokenizer_from, const std::string& out,
                                 DType dtype);

struct ExportSource {
  std::string weights;  // the directory with model.safetensors
  std::string model;    // the directory with config.json and the tokenizer's files
};

// `from` is a run directory (its last checkpoint, by checkpoints/LATEST), a checkpoint directory,
// or a Hugging Face directory. A checkpoint without a config.json takes it from the model its
// run.json names, or from `base_model` where that is not empty.
//   NOT_FOUND  none of these, or the model is gone (says which)
absl::StatusOr<ExportSource> FindExportSource(const std::string& from,
                                              const std::string& base_model);

// Writes what FindExportSource found through WriteModelDirectory.
absl::Status ExportModel(const ExportSource& source, const std::string& out, DType dtype);

}  // namespace tandem::cli
