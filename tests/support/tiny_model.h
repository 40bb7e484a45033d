// WriteTinyModel: writes a Hugging Face directory with a small random model, for tests that need a
// real engine or trainer but no particular weights. Free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem::testing {

// A Llama with 2 layers, hidden size 32, 4 heads, 2 KV heads, vocabulary 49152 (SmolLM2's), tied
// embeddings, end token 2 and context 256. Change fields before writing.
ModelConfig TinyModelConfig();

// The tensors of `config` in ModelTensors order, fp32, as a function of `seed`: norms around 1 and
// the rest around 0, wide enough that next-token distributions are peaked and a wrong forward pass
// shows in the log-probs.
std::vector<HostTensor> TinyModelTensors(const ModelConfig& config, uint64_t seed);

// Writes config.json, model.safetensors (fp32) and the files of tests/testdata/smollm2-tokenizer
// into the existing `directory`. `source_dir` is TANDEM_SOURCE_DIR.
absl::Status WriteTinyModel(const std::string& directory, const std::string& source_dir,
                            const ModelConfig& config, uint64_t seed);

}  // namespace tandem::testing
