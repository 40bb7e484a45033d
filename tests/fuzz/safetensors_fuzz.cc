// Any file as model.safetensors: refused, or its tensors lie inside it.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

#include "common/base/check.h"
#include "common/model/safetensors.h"
#include "tests/support/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::testing::TempDir directory;
  const std::string path = directory / "model.safetensors";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto file = tandem::ReadSafetensors(path);
  if (!file.ok()) {
    TANDEM_CHECK(!file.status().message().empty());
    return 0;
  }
  size_t total = 0;
  unsigned sum = 0;
  for (const tandem::HostTensor& tensor : file->tensors) {
    TANDEM_CHECK(static_cast<int64_t>(tensor.bytes.size()) == tensor.spec.num_bytes());
    total += tensor.bytes.size();
    for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);  // touch them all
  }
  TANDEM_CHECK(total <= size && sum <= 255 * total);
  return 0;
}
