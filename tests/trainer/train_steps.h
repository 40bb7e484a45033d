// Train steps over the toy model, and the gradients that they took.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/trainer/scored_groups.h"
#include "tests/trainer/toy_model.h"
#include "trainer/train_step.h"

namespace tandem::testing {

// Groups with completions of unequal lengths.
inline std::vector<ScoredGroup> Groups(int num_groups = 2, int group_size = 4) {
  std::mt19937 random(3);
  const auto ids = [&](int count) {
    std::vector<int32_t> result;
    for (int i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(random() % 32));
    return result;
  };
  std::vector<ScoredGroup> groups;
  for (int g = 0; g < num_groups; ++g) {
    groups.push_back(GroupWithPrompt(g, ids(3 + g)));
    for (int i = 0; i < group_size; ++i) {
      AddCompletion(groups.back(), ids(1 + 3 * i), i % 2 == 0 ? 1.0f : -0.7f, -3.5f);
    }
  }
  return groups;
}

inline std::unique_ptr<trainer::TrainStep> MakeStep(const trainer::TrainStepOptions& options,
                                                    double temperature = 1,
                                                    bool with_reference = false) {
  trainer::TrainStepSetup setup{.config = ToyConfig(), .temperature = temperature};
  setup.weights = ToyWeights(setup.config);
  if (with_reference) setup.reference_weights = ToyWeights(setup.config);
  return trainer::TrainStep::Create(setup, options).value();
}

// beta1 = 0 and no clipping: the first moment after one update is the gradient.
inline trainer::TrainStepOptions GradientOptions() {
  trainer::TrainStepOptions options;
  options.optimizer = {.learning_rate = 1e-3, .beta1 = 0, .max_grad_norm = 0};
  return options;
}

inline std::vector<float> Floats(const HostTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / 4);
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

inline std::map<std::string, std::vector<float>> Gradients(const trainer::TrainStep& step) {
  std::map<std::string, std::vector<float>> gradients;
  for (const TensorSource& source : step.OptimizerState()) {
    if (source.spec.name.rfind("exp_avg.", 0) != 0) continue;
    gradients[source.spec.name] = Floats(source.read().value());
  }
  return gradients;
}

inline void ExpectSameGradients(const trainer::TrainStep& a, const trainer::TrainStep& b,
                                double factor = 1) {
  const auto first = Gradients(a), second = Gradients(b);
  for (const auto& [name, values] : first) {
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], factor * second.at(name)[i], 2e-6) << name << " " << i;
    }
  }
}

}  // namespace tandem::testing
