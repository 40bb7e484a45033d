// Numerics `invariant` on a CUDA device, and CUDA graphs: the same completions, byte for byte, in
// any batch composition, by chunks, after a preemption, and whether decode steps are replayed
// as graphs or not. The model has a small vocabulary, so that emulated kernels end in seconds.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "common/tensor/nearest_cast.h"
#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::IsOk;

ModelConfig SmallVocabulary() {
  ModelConfig config = tandem::testing::TinyModelConfig();
  config.vocab_size = 600;
  config.eos_token_ids = {0};
  config.max_position_embeddings = 512;
  return config;
}

class CudaInvarianceTest : public EngineFixture,
                           public ::testing::WithParamInterface<ComputeDType> {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::make_unique<tandem::testing::TempDir>();
    ASSERT_THAT(tandem::testing::WriteTinyModel(directory_->path(), TANDEM_SOURCE_DIR,
                                                SmallVocabulary(), kModelSeed),
                IsOk());
  }
  static void TearDownTestSuite() { directory_.reset(); }

  static EngineOptions Options() {
    EngineOptions options = Fp32();
    options.device = Device::kCuda;
    options.numerics = Numerics::kInvariant;
    options.dtype = GetParam();
    options.max_batch_sequences = 16;  // the largest steps are run at the start
    options.max_step_tokens = 64;
    return options;
  }

  static std::unique_ptr<Engine> Make(const EngineOptions& options) {
    auto engine = Engine::Create(directory_->path(), options);
    EXPECT_THAT(engine, IsOk());
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  static GroupRequest Small(GroupKey key, int32_t prompt, int32_t members, int32_t new_tokens) {
    GroupRequest request = Group(key, prompt, members, new_tokens);
    for (int32_t& id : request.prompt) id = id % 600;
    return request;
  }

  // Prompts of 5 to 19 tokens, two members each.
  static std::vector<GroupRequest> Groups() {
    std::vector<GroupRequest> groups;
    for (int i = 1; i <= 3; ++i) groups.push_back(Small(i, 7 * i - 2, 2, 7));
    groups[1].sampling.top_p = 0.9f;
    groups[2].sampling.temperature = 0.7f;
    return groups;
  }

  // As a weight push sends them.
  static std::vector<HostTensor> Tensors(const Engine& engine, uint64_t seed) {
    std::vector<HostTensor> tensors;
    for (const HostTensor& tensor : tandem::testing::TinyModelTensors(SmallVocabulary(), seed)) {
      auto cast = CastNearest(tensor, engine.weight_dtype());
      EXPECT_THAT(cast, IsOk());
      if (cast.ok()) tensors.push_back(*std::move(cast));
    }
    return tensors;
  }

  static Completions Generate(const EngineOptions& options, std::vector<GroupRequest> groups) {
    const auto engine = Make(options);
    for (GroupRequest& group : groups) EXPECT_THAT(engine->Add(std::move(group)), IsOk());
    return RunToEnd(*engine);
  }

  // Each of the groups alone, computed once for each dtype.
  static const Completions& Alone() {
    static auto* const of_dtype = new std::map<ComputeDType, Completions>;
    Completions& alone = (*of_dtype)[GetParam()];
    if (!alone.empty()) return alone;
    const auto engine = Make(Options());
    for (GroupRequest& group : Groups()) {
      EXPECT_THAT(engine->Add(std::move(group)), IsOk());
      alone.merge(RunToEnd(*engine));
    }
    EXPECT_EQ(alone.size(), 3u);
    return alone;
  }

  inline static std::unique_ptr<tandem::testing::TempDir> directory_;
};

TEST_P(CudaInvarianceTest, ACompletionDoesNotDependOnItsCompany) {
  ExpectSameBytes(Generate(Options(), Groups()), Alone());
  // After 63 others, so that their logits lie in two slices.
  EngineOptions options = Options();
  options.max_batch_sequences = 80;
  options.kv_capacity_tokens = 4096;
  std::vector<GroupRequest> groups;
  for (int i = 0; i < 9; ++i) groups.push_back(Small(100 + i, 5 + i, 7, 4));
  std::ranges::move(Groups(), std::back_inserter(groups));
  const Completions together = Generate(options, groups);
  ExpectSameBytes(together, Alone());
  EXPECT_GT(std::ranges::max(together.at(1).at(0).decode_batch_sizes), 64);
}

TEST_P(CudaInvarianceTest, ACompletionDoesNotDependOnChunksOfPrompts) {
  EngineOptions options = Options();
  options.max_step_tokens = 9;
  options.max_batch_sequences = 8;
  ExpectSameBytes(Generate(options, Groups()), Alone());
}

TEST_P(CudaInvarianceTest, ACompletionDoesNotDependOnGraphs) {
  std::vector<GroupRequest> groups = Groups();
  groups.push_back(Small(4, 253, 1, 7));  // its contexts grow past a chunk of attention
  const Completions want = Generate(Options(), groups);
  EngineOptions options = Options();
  options.cuda_graphs = false;
  ExpectSameBytes(Generate(options, groups), want);
}

// The first token of a sequence whose KV was recomputed is sampled from a row of a prompt chunk.
TEST_P(CudaInvarianceTest, ACompletionDoesNotDependOnRecomputedKv) {
  EngineOptions options = Options();
  options.in_flight = InFlight::kRecompute;
  const auto engine = Make(options);
  for (GroupRequest& group : Groups()) ASSERT_THAT(engine->Add(std::move(group)), IsOk());
  Completions got;
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(StepInto(*engine, got));
  auto same = engine->Stage(Tensors(*engine, kModelSeed));
  ASSERT_THAT(same, IsOk());
  engine->Install(*std::move(same), WeightVersion(1));
  got.merge(RunToEnd(*engine));
  ExpectSameBytes(got, Alone());
  EXPECT_EQ(got.at(3).at(1).version_spans.size(), 2u);
}

// Both by the sampler of the CPU, over logits of prompt rows or of decodes; the record is the
// kernel's, whose sums are in another order.
TEST_P(CudaInvarianceTest, AScoreHasTheSameBitsByEitherPathAndTheRecordIsTheSameToRounding) {
  const auto engine = Make(Options());
  const GroupRequest group = Small(3, 19, 2, 7);
  ASSERT_THAT(engine->Add(group), IsOk());
  const Completions drawn = RunToEnd(*engine);
  const FinishedCompletion& completion = drawn.at(3).at(1);
  std::vector<int32_t> ids = group.prompt;
  ids.insert(ids.end(), completion.token_ids.begin(), completion.token_ids.end());
  std::vector<float> of_path[2];
  for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
    const auto scores = engine->Score({{ids}}, {.path = path});
    ASSERT_THAT(scores, IsOk());
    of_path[path == ScorePath::kDecode] = (*scores)[0].logprobs;
  }
  ASSERT_EQ(of_path[0], of_path[1]);
  for (size_t t = 0; t < completion.token_ids.size(); ++t) {
    EXPECT_NEAR(of_path[0][group.prompt.size() + t], completion.behaviour_logprobs[t], 2e-6) << t;
  }
}

// Weights alternate between two memories and then use a third; graphs of each exist or do not.
TEST_P(CudaInvarianceTest, AReplayReadsTheWeightsThatServe) {
  Completions of[2];
  for (const bool graphs : {false, true}) {
    EngineOptions options = Options();
    options.cuda_graphs = graphs;
    const auto engine = Make(options);
    for (GroupRequest& group : Groups()) ASSERT_THAT(engine->Add(std::move(group)), IsOk());
    Completions& out = of[graphs];
    for (uint64_t version = 1; engine->HasWork(); ++version) {
      ASSERT_TRUE(StepInto(*engine, out));
      auto staged = engine->Stage(Tensors(*engine, 40 + version));
      ASSERT_THAT(staged, IsOk());
      if (version == 5) {  // given up, and the memory with it
        staged = engine->Stage(Tensors(*engine, 40 + version));
        ASSERT_THAT(staged, IsOk());
      }
      engine->Install(*std::move(staged), WeightVersion(version));
    }
  }
  ExpectSameBytes(of[1], of[0]);
  EXPECT_GT(of[1].at(1).at(0).version_spans.size(), 3u);
}

// A sample that is recorded in full is made on the host, and the step then has no graph.
TEST_P(CudaInvarianceTest, GraphsAndStepsWithoutTakeTurns) {
  std::vector<GroupRequest> groups = Groups();
  groups.push_back(Small(9, 6, 1, 4));
  groups.back().sampling.top_logprobs = 3;
  const Completions got = Generate(Options(), groups);
  ExpectSameBytes(got, Alone());
  EXPECT_EQ(got.at(9).at(0).top.size(), 4u);
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaInvarianceTest,
                         ::testing::Values(ComputeDType::kFp32, ComputeDType::kBf16),
                         [](const auto& info) {
                           return info.param == ComputeDType::kFp32 ? "fp32" : "bf16";
                         });

}  // namespace
}  // namespace tandem::rollout
