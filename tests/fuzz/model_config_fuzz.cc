// Any text as config.json: refused, or a configuration whose tensors can be named and counted.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto config = tandem::ParseModelConfig(json, "config.json");
  if (!config.ok()) {
    TANDEM_CHECK(!config.status().message().empty());
    return 0;
  }
  TANDEM_CHECK(config->num_layers > 0 && config->hidden_size > 0 && config->vocab_size > 0);
  if (config->num_layers > 64) return 0;
  for (const tandem::TensorSpec& tensor : ModelTensors(*config, tandem::DType::kF32)) {
    TANDEM_CHECK(tensor.num_bytes() > 0);
  }
  return 0;
}
