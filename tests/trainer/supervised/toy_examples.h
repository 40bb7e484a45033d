// Examples of token ids for tests of supervised training, for the vocabulary of ToyConfig.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "trainer/preferences/preference_data.h"

namespace tandem::testing {

inline std::vector<int32_t> ToyIds(std::mt19937& random, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random() % 32));
  return ids;
}

// Prompts of 2 to 4 tokens and completions of 1 to 5.
inline std::vector<trainer::PreferencePair> ToyPairs(int count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<trainer::PreferencePair> pairs;
  for (int i = 0; i < count; ++i) {
    trainer::PreferencePair pair;
    pair.prompt = ToyIds(random, 2 + i % 3);
    pair.chosen = ToyIds(random, 1 + i % 5);
    pair.rejected = ToyIds(random, 1 + (i + 2) % 5);
    pair.row = i + 1;
    pairs.push_back(pair);
  }
  return pairs;
}

inline std::vector<trainer::LabelledCompletion> ToyCompletions(int count, uint32_t seed = 1) {
  std::vector<trainer::LabelledCompletion> completions;
  for (const trainer::PreferencePair& pair : ToyPairs(count, seed)) {
    completions.push_back({pair.prompt, pair.chosen, pair.row % 2 == 1, pair.row});
  }
  return completions;
}

inline std::vector<int64_t> FirstNumbers(int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

}  // namespace tandem::testing
