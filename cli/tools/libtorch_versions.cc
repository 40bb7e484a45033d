// The versions of LibTorch and of the libraries inside it, for `tandem version`. They are in a file
// of their own, because no file includes both LibTorch and gRPC.
#include <ATen/Version.h>
#include <torch/version.h>

#include "cli/io/subcommand.h"

namespace tandem::cli {

std::string LibTorchVersion() { return TORCH_VERSION " (" + at::get_cpu_capability() + ")"; }

std::string OneDnnVersion() {
  // "Intel(R) MKL-DNN v3.10.2 (Git Hash ...)"
  const std::string text = at::get_mkldnn_version();
  const size_t at = text.find(" v");
  return at == std::string::npos ? "none" : text.substr(at + 1);
}

}  // namespace tandem::cli
