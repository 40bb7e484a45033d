#include <ATen/Version.h>
#include <torch/version.h>

#include "cli/tools/library_versions.h"

namespace tandem::cli {

std::string LibTorchVersion() { return TORCH_VERSION; }

std::string OneDnnVersion() {
  // "Intel(R) MKL-DNN v3.10.2 (Git Hash ...)"
  const std::string text = at::get_mkldnn_version();
  const size_t at = text.find(" v");
  return at == std::string::npos ? "none" : text.substr(at + 1);
}

std::string CpuCapability() { return at::get_cpu_capability(); }

}  // namespace tandem::cli
