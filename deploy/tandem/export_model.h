// A checkpoint of a run as a Hugging Face directory. `tandem export` uses it; free of LibTorch.
#ifndef TANDEM_DEPLOY_TANDEM_EXPORT_MODEL_H_
#define TANDEM_DEPLOY_TANDEM_EXPORT_MODEL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem::front {

struct ExportSource {
  std::string weights;  // the directory with model.safetensors
  std::string model;    // the directory with config.json and the tokenizer's files
};

// `from` is a run directory (its last checkpoint, by checkpoints/LATEST), a checkpoint directory, or a
// Hugging Face directory. A checkpoint without a config.json takes it from the model its run.json
// names, or from `base_model` where that is not empty.
//   NOT_FOUND  none of these, or the model is gone (says which)
absl::StatusOr<ExportSource> FindExportSource(const std::string& from,
                                              const std::string& base_model);

// Writes config, weights as `dtype` (kF32 or kBF16, nearest, ties to even) and the tokenizer's files.
//   ALREADY_EXISTS  `out` holds a config.json
absl::Status ExportModel(const ExportSource& source, const std::string& out, DType dtype);

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_EXPORT_MODEL_H_
