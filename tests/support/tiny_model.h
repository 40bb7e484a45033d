// WriteTinyModel: a Hugging Face directory with a small random model, for tests that need a real
// engine or trainer and no particular weights. Free of LibTorch.
#ifndef TANDEM_TESTS_SUPPORT_TINY_MODEL_H_
#define TANDEM_TESTS_SUPPORT_TINY_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem::testing {

// A Llama of 2 layers, hidden 32, 4 heads over 2, vocabulary 49152 (SmolLM2's), tied embeddings,
// end token 2, context 256. Change fields before writing.
ModelConfig TinyModelConfig();

// The tensors of `config` in ModelTensors order, fp32, filled from `seed` alone: norms around 1,
// the rest around 0, wide enough that next-token distributions are peaky and a wrong forward shows
// in the log-probs.
std::vector<HostTensor> TinyModelTensors(const ModelConfig& config, uint64_t seed);

// Writes config.json, model.safetensors (fp32) and the files of tests/testdata/smollm2-tokenizer
// into the existing `directory`. `source_dir` is TANDEM_SOURCE_DIR.
absl::Status WriteTinyModel(const std::string& directory, const std::string& source_dir,
                            const ModelConfig& config, uint64_t seed);

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_SUPPORT_TINY_MODEL_H_
