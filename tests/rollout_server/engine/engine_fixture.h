// EngineFixture: a tiny model on disk for a whole test suite, and engines over it.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "rollout_server/engine/engine.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::rollout {

// Completions by group, then by index.
using Completions = std::map<GroupKey, std::map<int32_t, FinishedCompletion>>;

inline std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// Every completion of `want`: ids, log-probs, entropies and moments, bit for bit.
inline void ExpectSameBytes(const Completions& got, const Completions& want) {
  for (const auto& [key, members] : want) {
    ASSERT_TRUE(got.contains(key)) << key;
    for (const auto& [index, completion] : members) {
      const FinishedCompletion& other = got.at(key).at(index);
      SCOPED_TRACE(::testing::Message() << "group " << key << ", member " << index);
      ASSERT_EQ(other.token_ids, completion.token_ids);
      ASSERT_EQ(BitsOf(other.behaviour_logprobs), BitsOf(completion.behaviour_logprobs));
      ASSERT_EQ(BitsOf(other.raw_logprobs), BitsOf(completion.raw_logprobs));
      ASSERT_EQ(BitsOf(other.entropies), BitsOf(completion.entropies));
      ASSERT_EQ(BitsOf(other.logprob_second_moments), BitsOf(completion.logprob_second_moments));
    }
  }
}

class EngineFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kModelSeed = 11;

  static void SetUpTestSuite() { SetUpModel(tandem::testing::TinyModelConfig()); }
  static void TearDownTestSuite() { directory_.reset(); }

  static void SetUpModel(const ModelConfig& config) {
    directory_ = std::make_unique<tandem::testing::TempDir>();
    ASSERT_THAT(
        tandem::testing::WriteTinyModel(directory_->path(), TANDEM_SOURCE_DIR, config, kModelSeed),
        tandem::testing::IsOk());
  }

  static const std::string& directory() { return directory_->path(); }

  static EngineOptions Fp32() {
    EngineOptions options;
    options.dtype = ComputeDType::kFp32;
    options.kv_capacity_tokens = 2048;
    options.num_threads = 2;
    return options;
  }

  static std::unique_ptr<Engine> Make(const EngineOptions& options) {
    auto engine = Engine::Create(directory_->path(), options);
    EXPECT_THAT(engine, tandem::testing::IsOk());
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  // Prompt of `size` ids that differ with `salt`.
  static std::vector<int32_t> Prompt(int32_t size, int32_t salt) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < size; ++i) ids.push_back(100 + (i * 7919 + salt * 104729) % 40000);
    return ids;
  }

  static GroupRequest Group(GroupKey key, int32_t prompt, int32_t completions,
                            int32_t max_new_tokens) {
    GroupRequest request;
    request.key = key;
    request.prompt = Prompt(prompt, static_cast<int32_t>(key));
    request.num_completions = completions;
    request.sampling.max_new_tokens = max_new_tokens;
    request.sampling.seed = 1000 + static_cast<uint64_t>(key);
    request.sampling.ignore_eos = true;
    return request;
  }

  static void Collect(std::vector<EngineEvent> events, Completions& out) {
    for (EngineEvent& event : events) {
      auto* finished = std::get_if<CompletionFinished>(&event);
      if (finished == nullptr) continue;
      const int32_t index = finished->completion.index;
      EXPECT_FALSE(out[finished->key].contains(index));
      out[finished->key][index] = std::move(finished->completion);
    }
  }

  // One step; false after an error.
  static bool StepInto(Engine& engine, Completions& out) {
    auto events = engine.Step();
    EXPECT_THAT(events, tandem::testing::IsOk());
    if (!events.ok()) return false;
    Collect(*std::move(events), out);
    return true;
  }

  static Completions RunToEnd(Engine& engine) {
    Completions out;
    while (engine.HasWork() && StepInto(engine, out)) {
    }
    return out;
  }

  static Completions Generate(const EngineOptions& options, std::vector<GroupRequest> groups) {
    const std::unique_ptr<Engine> engine = Make(options);
    for (GroupRequest& group : groups)
      EXPECT_THAT(engine->Add(std::move(group)), tandem::testing::IsOk());
    return RunToEnd(*engine);
  }

  static double LargestGap(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    double gap = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      gap = std::max(gap, std::abs(double{a[i]} - double{b[i]}));
    }
    return gap;
  }

 private:
  inline static std::unique_ptr<tandem::testing::TempDir> directory_;
};

}  // namespace tandem::rollout
