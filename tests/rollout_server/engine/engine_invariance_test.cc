// A completion depends on weights, prompt, sampling parameters, seed and index alone. Each test
// runs the same groups under other conditions and expects the same bytes of ids, log-probs,
// entropies and moments.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::IsOk;

struct Formats {
  const char* name;
  ComputeDType dtype;
  QuantisationOptions quantised;
};

class EngineInvarianceTest : public EngineFixture, public ::testing::WithParamInterface<Formats> {
 protected:
  static constexpr int kGroups = 8;
  // With 49152 tokens, the head takes most of the time. A small vocabulary, whose size is no multiple
  // of a vector, leaves as many ways to batch and to chunk; WholeVocabularyTest has the whole one.
  static constexpr int32_t kVocabulary = 5003;

  static void SetUpTestSuite() {
    ModelConfig config = tandem::testing::TinyModelConfig();
    config.vocab_size = kVocabulary;
    SetUpModel(config);
  }

  static EngineOptions Options() {
    EngineOptions options = Fp32();
    options.dtype = GetParam().dtype;
    options.quantised = GetParam().quantised;
    options.kv_capacity_tokens = 16384;
    return options;
  }

  static GroupRequest Group(GroupKey key, int32_t prompt, int32_t completions,
                            int32_t max_new_tokens) {
    GroupRequest group = EngineFixture::Group(key, prompt, completions, max_new_tokens);
    for (int32_t& id : group.prompt) id %= kVocabulary;
    return group;
  }

  // Prompts of 5 to 40 tokens, two members each; the prompts of 7 and 8 begin alike.
  static std::vector<GroupRequest> Groups() {
    std::vector<GroupRequest> groups;
    for (int i = 1; i <= kGroups; ++i) groups.push_back(Group(i, 5 * i, 2, 20));
    std::copy_n(groups[6].prompt.begin(), 32, groups[7].prompt.begin());
    return groups;
  }

  // Each group in an engine of its own.
  static Completions Alone(const EngineOptions& options) {
    Completions out;
    for (GroupRequest& group : Groups()) out.merge(Generate(options, {std::move(group)}));
    return out;
  }
};

TEST_P(EngineInvarianceTest, NotOnWhatElseIsInTheBatch) {
  const Completions alone = Alone(Options());
  ExpectSameBytes(Generate(Options(), Groups()), alone);
  for (const int others :
       {8, 24, 56}) {  // batches of about 8, 32 and 64 with the groups that are looked at
    std::vector<GroupRequest> groups = Groups();
    for (int i = 0; i < others / 8; ++i) groups.push_back(Group(100 + i, 11 + i, 8, 20));
    EngineOptions options = Options();
    options.max_batch_sequences = 128;
    Completions together = Generate(options, groups);
    ExpectSameBytes(together, alone);
    EXPECT_GT(std::ranges::max(together.at(1).at(0).decode_batch_sizes), others);
  }
}

TEST_P(EngineInvarianceTest, NotOnTheOrderOfArrival) {
  std::vector<GroupRequest> groups = Groups();
  const Completions want = Generate(Options(), groups);
  std::ranges::reverse(groups);
  ExpectSameBytes(Generate(Options(), groups), want);
  // Adds them one by one, between steps.
  const auto engine = Make(Options());
  Completions out;
  for (GroupRequest& group : groups) {
    ASSERT_THAT(engine->Add(std::move(group)), IsOk());
    ASSERT_TRUE(StepInto(*engine, out));
  }
  out.merge(RunToEnd(*engine));
  ExpectSameBytes(out, want);
}

TEST_P(EngineInvarianceTest, NotOnHowPromptsAreChunked) {
  const Completions want = Generate(Options(), Groups());
  for (const int64_t tokens : {1, 3, 16, 37}) {
    EngineOptions options = Options();
    options.max_step_tokens = tokens;
    options.max_batch_sequences = std::min<int64_t>(tokens + 1, 64);
    if (options.max_batch_sequences < 2) options.max_batch_sequences = 2;
    ExpectSameBytes(Generate(options, Groups()), want);
  }
}

TEST_P(EngineInvarianceTest, NotOnThePrefixCache) {
  EngineOptions options = Options();
  options.prefix_cache = false;
  const Completions want = Generate(options, Groups());
  options.prefix_cache = true;
  options.max_batch_sequences = 2;  // one group after the other
  const auto engine = Make(options);
  for (int round = 0; round < 2; ++round) {
    for (GroupRequest& group : Groups()) ASSERT_THAT(engine->Add(std::move(group)), IsOk());
    const Completions got = RunToEnd(*engine);
    ExpectSameBytes(got, want);
    // Group 8 finds what group 7 computed; in the second round everyone finds full blocks.
    const FinishedCompletion& eighth = got.at(8).at(0);
    EXPECT_EQ(eighth.prefix_cached, std::vector<bool>(eighth.token_ids.size(), true));
    EXPECT_EQ(got.at(4).at(0).prefix_cached[0], round == 1);
    EXPECT_FALSE(got.at(1).at(0).prefix_cached[0]);  // 5 tokens fill no block
  }
  EXPECT_EQ(engine->Stats().num_prefix_hits, 9u);  // 2, then 1 + 1 + 1 + 2 + 2 blocks
}

TEST_P(EngineInvarianceTest, NotOnPreemption) {
  const Completions want = Generate(Options(), Groups());
  EngineOptions options = Options();
  options.kv_capacity_tokens = 192;  // the largest group's worst case and a little more
  const auto engine = Make(options);
  // Groups that stop at once make the scheduler overcommit.
  for (int i = 0; i < 24; ++i) {
    GroupRequest group = Group(1000 + i, 3, 1, 150);
    group.sampling.stop_token_ids.resize(engine->config().vocab_size);
    for (size_t id = 0; id < group.sampling.stop_token_ids.size(); ++id) {
      group.sampling.stop_token_ids[id] = static_cast<int32_t>(id);
    }
    ASSERT_THAT(engine->Add(std::move(group)), IsOk());
  }
  RunToEnd(*engine);
  for (GroupRequest& group : Groups()) ASSERT_THAT(engine->Add(std::move(group)), IsOk());
  const Completions got = RunToEnd(*engine);
  EXPECT_GT(engine->Stats().num_preemptions, 0u);
  ExpectSameBytes(got, want);
}

TEST_P(EngineInvarianceTest, NotOnTheNumberOfThreads) {
  const Completions want = Generate(Options(), Groups());
  for (const int64_t threads : {1, 3}) {
    EngineOptions options = Options();
    options.num_threads = threads;
    ExpectSameBytes(Generate(options, Groups()), want);
  }
}

TEST_P(EngineInvarianceTest, AScoreOfTheTokensGivesTheSameLogProbsByEitherPath) {
  const std::vector<GroupRequest> groups = Groups();
  const auto engine = Make(Options());
  for (const GroupRequest& group : groups) ASSERT_THAT(engine->Add(group), IsOk());
  const Completions drawn = RunToEnd(*engine);
  for (const ScorePath path : {ScorePath::kPrefill, ScorePath::kDecode}) {
    for (const GroupRequest& group : groups) {
      const FinishedCompletion& c = drawn.at(group.key).at(1);
      std::vector<int32_t> ids = group.prompt;
      ids.insert(ids.end(), c.token_ids.begin(), c.token_ids.end());
      const auto scores = engine->Score({{ids}}, {.path = path});
      ASSERT_THAT(scores, IsOk());
      const std::vector<float> of_completion((*scores)[0].logprobs.begin() + group.prompt.size(),
                                             (*scores)[0].logprobs.end());
      ASSERT_EQ(of_completion, c.behaviour_logprobs) << "group " << group.key;
    }
  }
}

class WholeVocabularyTest : public EngineFixture {};

// How the rows of a whole vocabulary are shared among threads, and multiplied for few and for many
// sequences.
TEST_F(WholeVocabularyTest, NeitherTheBatchNorTheThreadsChangeACompletion) {
  std::vector<GroupRequest> groups;
  for (int i = 1; i <= 4; ++i) groups.push_back(Group(i, 5 * i, 8, 10));
  for (const ComputeDType dtype : {ComputeDType::kFp32, ComputeDType::kBf16}) {
    EngineOptions options = Fp32();
    options.dtype = dtype;
    Completions alone;
    for (const GroupRequest& group : groups) alone.merge(Generate(options, {group}));
    for (const int64_t threads : {1, 2, 3}) {
      options.num_threads = threads;
      ExpectSameBytes(Generate(options, groups), alone);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, EngineInvarianceTest,
    ::testing::Values(Formats{"fp32", ComputeDType::kFp32, {}},
                      Formats{"bf16", ComputeDType::kBf16, {}},
                      Formats{"int8", ComputeDType::kBf16, {.weights = WeightScheme::kInt8}},
                      Formats{"int8_kv",
                              ComputeDType::kBf16,
                              {.weights = WeightScheme::kInt8, .kv = KvFormat::kInt8}},
                      Formats{"fp8_kv_fp8",
                              ComputeDType::kBf16,
                              {.weights = WeightScheme::kFp8E4m3, .kv = KvFormat::kFp8E4m3}},
                      Formats{"int4", ComputeDType::kBf16, {.weights = WeightScheme::kInt4Group}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tandem::rollout
