// What this build is and what it was linked with: `tandem version`. Each library is asked in a file
// of its own, because LibTorch and gRPC never meet in one.
#pragma once

#include <string>

namespace tandem::cli {

std::string VersionLine();      // "tandem 0.1.0 (commit 1a2b3c4)"
std::string LibTorchVersion();  // "2.11.0"
std::string OneDnnVersion();    // "v3.10.2 (Git Hash ...)" or "none"
std::string CpuCapability();    // what LibTorch's kernels use here: "AVX512"
std::string GrpcVersion();      // "1.51.1"

}  // namespace tandem::cli
