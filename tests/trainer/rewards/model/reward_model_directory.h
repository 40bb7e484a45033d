// WriteRewardModel: a tiny reward model with random weights in a Hugging Face directory.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_model.h"
#include "trainer/critic/critic_options.h"
#include "trainer/critic/scored_model.h"

namespace tandem::trainer {

// `task`: kSequenceTask with `num_heads` heads, or kTokenTask with one.
inline void WriteRewardModel(const std::string& directory, const std::string& task,
                             int64_t num_heads, uint64_t seed) {
  const ModelConfig config = testing::TinyModelConfig();
  ASSERT_THAT(MakeDirectories(directory), testing::IsOk());
  ASSERT_THAT(testing::WriteTinyModel(directory, TANDEM_SOURCE_DIR, config, seed), testing::IsOk());
  const std::string text = *ReadFile(directory + "/config.json");
  ASSERT_THAT(WriteFileAtomically(directory + "/config.json",
                                  absl::StrReplaceAll(text, {{kCausalTask, task}})),
              testing::IsOk());
  std::vector<HostTensor> tensors = testing::TinyModelTensors(config, seed);
  auto head = std::make_shared<std::vector<float>>();
  for (int64_t i = 0; i < num_heads * config.hidden_size; ++i) {
    head->push_back(0.2f * std::sin(static_cast<float>(i + 3 * static_cast<int64_t>(seed))));
  }
  tensors.push_back({{kScoreWeight, DType::kF32, {num_heads, config.hidden_size}},
                     std::as_bytes(std::span<const float>(*head)),
                     head});
  ASSERT_THAT(WriteSafetensors(directory + "/model.safetensors", tensors), testing::IsOk());
}

}  // namespace tandem::trainer
