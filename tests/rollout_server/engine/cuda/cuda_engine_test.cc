// The engine on a CUDA device against the engine on the CPU: same model, same requests.
#include <gtest/gtest.h>

#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

// Prompts of 40 tokens: chunks long enough for the flash kernels, contexts over several blocks.
// A small vocabulary, from which emulated kernels sample quickly.
class CudaEngineTest : public EngineFixture {
 protected:
  static constexpr int32_t kVocabulary = 1500;

  static ModelConfig Config() {
    ModelConfig config = tandem::testing::TinyModelConfig();
    config.vocab_size = kVocabulary;
    return config;
  }

  static void SetUpTestSuite() {
    directory_ = std::make_unique<tandem::testing::TempDir>();
    ASSERT_THAT(tandem::testing::WriteTinyModel(directory_->path(), TANDEM_SOURCE_DIR, Config(),
                                                kModelSeed),
                IsOk());
  }
  static void TearDownTestSuite() { directory_.reset(); }
  static const std::string& directory() { return directory_->path(); }

  static std::vector<int32_t> SmallPrompt(int32_t size, int32_t salt) {
    std::vector<int32_t> ids = Prompt(size, salt);
    for (int32_t& id : ids) id %= kVocabulary;
    return ids;
  }
  static GroupRequest SmallGroup(GroupKey key, int32_t prompt, int32_t completions,
                                 int32_t max_new_tokens) {
    GroupRequest request = Group(key, prompt, completions, max_new_tokens);
    request.prompt = SmallPrompt(prompt, static_cast<int32_t>(key));
    return request;
  }

  static std::unique_ptr<Engine> On(Device device, ComputeDType dtype,
                                    const std::string& directory) {
    EngineOptions options = Fp32();
    options.device = device;
    options.dtype = dtype;
    // The largest steps are run at the start, so they are small where kernels are emulated.
    options.max_batch_sequences = 16;
    options.max_step_tokens = 128;
    auto engine = Engine::Create(directory, options);
    EXPECT_THAT(engine, IsOk());
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  static std::vector<SequenceScore> ScoresOf(Engine& engine, ScorePath path) {
    std::vector<ScoreSequence> sequences(3);
    for (int32_t s = 0; s < 3; ++s) {
      sequences[s].ids = SmallPrompt(40 + 30 * s, s);
      sequences[s].num_prompt_tokens = 20;
    }
    ScoreOptions options;
    options.path = path;
    const auto scores = engine.Score(sequences, options);
    EXPECT_THAT(scores, IsOk());
    return scores.ok() ? *scores : std::vector<SequenceScore>{};
  }

  // How much the log-probs of the two devices may differ: each by `absolute` + `relative` x its
  // size (those of unlikely tokens come from sums of larger terms), and by `mean` on average.
  struct Tolerance {
    double absolute = 0, relative = 0, mean = 0;
  };

  static void ExpectSameScores(const ModelConfig& config, ComputeDType dtype,
                               const Tolerance& tolerance) {
    const tandem::testing::TempDir directory;
    ASSERT_THAT(tandem::testing::WriteTinyModel(directory.path(), TANDEM_SOURCE_DIR, config, 5),
                IsOk());
    const auto cpu = On(Device::kCpu, dtype, directory.path());
    const auto cuda = On(Device::kCuda, dtype, directory.path());
    ASSERT_TRUE(cpu && cuda);
    for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
      const auto want = ScoresOf(*cpu, path), got = ScoresOf(*cuda, path);
      ASSERT_EQ(got.size(), want.size());
      double sum = 0, count = 0;
      for (size_t s = 0; s < want.size(); ++s) {
        for (size_t t = 20; t < want[s].logprobs.size(); ++t) {
          const double apart = std::abs(got[s].logprobs[t] - want[s].logprobs[t]);
          ASSERT_LE(apart, tolerance.absolute + tolerance.relative * std::abs(want[s].logprobs[t]))
              << "sequence " << s << ", token " << t << ": " << got[s].logprobs[t] << ", want "
              << want[s].logprobs[t];
          sum += apart;
          ++count;
        }
      }
      EXPECT_LE(sum / count, tolerance.mean);
    }
  }

  static std::map<std::string, ModelConfig> Models() {
    std::map<std::string, ModelConfig> models = {{"llama", Config()}};
    ModelConfig qwen2 = models["llama"];
    qwen2.model_type = "qwen2";
    qwen2.attention_qkv_bias = true;
    qwen2.num_kv_heads = 1;
    models["qwen2"] = qwen2;
    ModelConfig qwen3 = models["llama"];
    qwen3.model_type = "qwen3";
    qwen3.qk_norm = QkNorm::kPerHead;
    qwen3.head_dim = 64;
    qwen3.tie_word_embeddings = false;
    models["qwen3"] = qwen3;
    return models;
  }

 private:
  inline static std::unique_ptr<tandem::testing::TempDir> directory_;
};

TEST_F(CudaEngineTest, ScoresAsTheCpuDoesInFp32) {
  for (const auto& [name, config] : Models()) {
    SCOPED_TRACE(name);
    ExpectSameScores(config, ComputeDType::kFp32, {2e-4, 0, 4e-5});
  }
}

TEST_F(CudaEngineTest, ScoresAsTheCpuDoesInBf16) {
  for (const auto& [name, config] : Models()) {
    SCOPED_TRACE(name);
    ExpectSameScores(config, ComputeDType::kBf16, {0.15, 0.03, 0.06});
  }
}

TEST_F(CudaEngineTest, DrawsTheSameTokensInFp32) {
  Completions of_device[2];
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    const auto engine = On(device, ComputeDType::kFp32, directory());
    ASSERT_TRUE(engine);
    for (GroupKey key = 1; key <= 3; ++key)
      ASSERT_THAT(engine->Add(SmallGroup(key, 40, 4, 24)), IsOk());
    Completions& out = of_device[device == Device::kCuda];
    while (engine->HasWork()) ASSERT_TRUE(StepInto(*engine, out));
  }
  int same = 0, all = 0;
  for (const auto& [key, group] : of_device[0]) {
    for (const auto& [index, want] : group) {
      const FinishedCompletion& got = of_device[1][key][index];
      ASSERT_EQ(got.token_ids.size(), want.token_ids.size());
      for (size_t t = 0; t < want.token_ids.size() && got.token_ids[t] == want.token_ids[t]; ++t) {
        EXPECT_NEAR(got.behaviour_logprobs[t], want.behaviour_logprobs[t], 2e-4);
        EXPECT_NEAR(got.entropies[t], want.entropies[t], 1e-3);
      }
      same += got.token_ids == want.token_ids;
      ++all;
    }
  }
  // A uniform within rounding of the border between two tokens samples the other one, and then all
  // later tokens differ.
  EXPECT_EQ(all, 12);
  EXPECT_GE(same, 11);
}

// What is requested besides the token changes neither the token nor its record.
TEST_F(CudaEngineTest, RecordsTheSameWhateverElseIsAskedFor) {
  std::vector<Completions> runs;
  for (int asked = 0; asked < 4; ++asked) {
    const auto engine = On(Device::kCuda, ComputeDType::kFp32, directory());
    ASSERT_TRUE(engine);
    for (GroupKey key = 1; key <= 2; ++key) {
      GroupRequest group = SmallGroup(key, 20, 2, 8);
      group.sampling.temperature = 0.8f;
      if (key == 2) group.sampling.top_p = 0.7f;
      group.sampling.return_support = (asked & 1) != 0;
      group.sampling.top_logprobs = (asked & 2) != 0 ? 3 : 0;
      ASSERT_THAT(engine->Add(std::move(group)), IsOk());
    }
    Completions& out = runs.emplace_back();
    while (engine->HasWork()) ASSERT_TRUE(StepInto(*engine, out));
  }
  for (size_t asked = 0; asked < runs.size(); ++asked) {
    for (const auto& [key, group] : runs[0]) {
      for (const auto& [index, want] : group) {
        const FinishedCompletion& got = runs[asked][key][index];
        EXPECT_EQ(got.token_ids, want.token_ids);
        EXPECT_EQ(got.behaviour_logprobs, want.behaviour_logprobs);
        EXPECT_EQ(got.entropies, want.entropies);
        EXPECT_EQ(got.kept_mass, want.kept_mass);
        ASSERT_EQ(got.support.size(), (asked & 1) != 0 ? got.token_ids.size() : 0);
        ASSERT_EQ(got.top.size(), (asked & 2) != 0 ? got.token_ids.size() : 0);
        for (size_t t = 0; t < got.support.size(); ++t) {
          EXPECT_EQ(got.support[t].empty(), key == 1);
          if (key == 1) continue;
          const std::vector<int32_t> ids = got.support[t].ids();
          EXPECT_TRUE(std::ranges::is_sorted(ids));
          EXPECT_TRUE(std::ranges::binary_search(ids, got.token_ids[t]));
        }
        for (size_t t = 0; t < got.top.size(); ++t) {
          for (const TopLogprob& top : got.top[t]) {
            if (top.id != got.token_ids[t]) continue;
            EXPECT_NEAR(top.logprob, got.behaviour_logprobs[t], 4e-6);
          }
        }
      }
    }
  }
}

TEST_F(CudaEngineTest, ServesNewWeightsAfterAnInstall) {
  const auto engine = On(Device::kCuda, ComputeDType::kFp32, directory());
  const auto before = ScoresOf(*engine, ScorePath::kPrefill);
  for (const uint64_t seed :
       {99, 11}) {  // others, then those of the directory again, into the spare's memory
    auto staged = engine->Stage(tandem::testing::TinyModelTensors(Config(), seed));
    ASSERT_THAT(staged, IsOk());
    engine->Install(*std::move(staged), WeightVersion(1));
    const auto after = ScoresOf(*engine, ScorePath::kPrefill);
    EXPECT_EQ(after[0].logprobs == before[0].logprobs, seed == kModelSeed);
  }
}

TEST_F(CudaEngineTest, RefusesToRoundAtSites) {
  const auto engine = On(Device::kCuda, ComputeDType::kFp32, directory());
  ScoreOptions options;
  options.arithmetic.precision.body_bits = 8;
  ScoreSequence sequence;
  sequence.ids = SmallPrompt(10, 1);
  EXPECT_THAT(engine->Score({sequence}, options),
              FailsWith(absl::StatusCode::kUnimplemented, "use device cpu"));
}

}  // namespace
}  // namespace tandem::rollout
