// HostileGroupsFixture: a model in which some ids give non-finite logits, and random groups of two
// kinds: healthy ones, and hostile ones that make their own logits non-finite or use the extremes
// of all accepted parameters.
#pragma once

#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/rollout_server/engine/engine_fixture.h"
#include "tests/rollout_server/engine/poisoned_model.h"

namespace tandem::rollout {

class HostileGroupsFixture : public EngineFixture {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::make_unique<tandem::testing::TempDir>();
    ASSERT_THAT(WritePoisonedModel(directory_->path(), kModelSeed), tandem::testing::IsOk());
  }
  static void TearDownTestSuite() { directory_.reset(); }

  // Small enough that groups wait, prompts are computed in pieces and members lose their KV.
  static EngineOptions Tight() {
    EngineOptions options = Fp32();
    options.kv_capacity_tokens = 640;
    options.max_batch_sequences = 12;
    options.max_step_tokens = 29;
    return options;
  }

  static std::unique_ptr<Engine> MakePoisoned(const EngineOptions& options) {
    auto engine = Engine::Create(directory_->path(), options);
    EXPECT_THAT(engine, tandem::testing::IsOk());
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  using Random = std::mt19937_64;
  static int32_t Draw(Random& random, int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint64_t>(high - low + 1));
  }

  // Prompts of both kinds begin alike, so that they look for each other's blocks.
  static std::vector<int32_t> RandomPrompt(Random& random) {
    std::vector<int32_t> prompt;
    const int32_t shared = Draw(random, 0, 40), size = shared + Draw(random, 1, 30);
    for (int32_t i = 0; i < size; ++i) {
      prompt.push_back(i < shared ? 50 + i : Draw(random, 10, kVocabulary - 1));
    }
    return prompt;
  }

  // A group that never draws a poisoned id and goes on.
  static GroupRequest Healthy(GroupKey key, Random& random) {
    GroupRequest group;
    group.key = key;
    group.prompt = RandomPrompt(random);
    group.num_completions = Draw(random, 1, 4);
    SamplingParams& s = group.sampling;
    s.temperature = Draw(random, 0, 3) * 0.5f;
    s.top_k = Draw(random, 0, 1) * 40;
    s.top_p = Draw(random, 0, 1) == 0 ? 1.0f : 0.9f;
    s.max_new_tokens = Draw(random, 1, 30);
    s.stop_token_ids = {kNan, kInfinite};
    s.seed = random();
    return group;
  }

  // Forbids every id but this one, so that it is sampled.
  static void MustDraw(int32_t id, SamplingParams& s) {
    s.stop_token_ids.clear();
    for (int32_t other = 0; other < kVocabulary; ++other) {
      if (other != id) s.stop_token_ids.push_back(other);
    }
    s.min_new_tokens = s.max_new_tokens;
  }

  // A group that fails, or that is at a limit of what is allowed.
  static GroupRequest Hostile(GroupKey key, Random& random) {
    GroupRequest group = Healthy(key, random);
    SamplingParams& s = group.sampling;
    group.priority = Draw(random, 0, 1);
    s.max_new_tokens = Draw(random, 2, 20);
    const int32_t id = Draw(random, 0, 1) == 0 ? kNan : kInfinite;
    switch (Draw(random, 0, 3)) {
      case 0:  // its prompt is poison
        group.prompt[random() % group.prompt.size()] = id;
        break;
      case 1:  // it draws poison first
        MustDraw(id, s);
        break;
      case 2:  // it may go on drawing poison
        s.stop_token_ids.clear();
        s.ignore_eos = true;
        s.temperature = 3e38f;
        break;
      default:  // the extremes that are accepted
        MustDraw(Draw(random, 10, kVocabulary - 1), s);
        s.stop_token_ids.insert(s.stop_token_ids.end(), 1000, s.stop_token_ids[0]);
        s.temperature = Draw(random, 0, 1) == 0 ? 0.001f : 3.4e38f;
        s.top_k = std::numeric_limits<int32_t>::max();
        s.top_p = 1e-30f;
        s.min_p = 0.999999f;
        s.return_support = true;
        s.top_logprobs = kMaxTopLogprobs;
        break;
    }
    return group;
  }

  struct Outcome {
    Completions completions;
    std::map<GroupKey, absl::Status> failed;
    std::set<GroupKey> ended;
  };

  // Runs the groups in this order, each added some steps after the one before it.
  static Outcome RunAll(Engine& engine, const std::vector<GroupRequest>& groups) {
    Outcome out;
    size_t next = 0;
    while (next < groups.size() || engine.HasWork()) {
      if (next < groups.size()) {
        EXPECT_THAT(engine.Add(groups[next++]), tandem::testing::IsOk());
      }
      auto events = engine.Step();
      EXPECT_THAT(events, tandem::testing::IsOk()) << "a group ended the engine";
      if (!events.ok()) return out;
      for (const EngineEvent& event : *events) {
        if (const auto* one = std::get_if<GroupFailed>(&event)) {
          EXPECT_TRUE(out.failed.emplace(one->key, one->status).second);
          EXPECT_EQ(one->cause, GroupFailure::kNonFiniteLogits);
        } else if (const auto* group = std::get_if<GroupFinished>(&event)) {
          EXPECT_TRUE(out.ended.insert(group->key).second);
        }
      }
      Collect(*std::move(events), out.completions);
    }
    return out;
  }

  // Healthy groups beside hostile ones, and alone: equal bytes, and every healthy one ends.
  static void ExpectHealthyOnesUnchanged(const EngineOptions& options, uint64_t seed,
                                         int num_groups) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<GroupRequest> all, healthy;
    for (GroupKey key = 1; key <= num_groups; ++key) {
      const bool hostile = Draw(random, 0, 1) == 0;
      all.push_back(hostile ? Hostile(key, random) : Healthy(key, random));
      if (!hostile) healthy.push_back(all.back());
    }
    // The random ones may all succeed by chance; the last one always fails.
    all.push_back(Healthy(num_groups + 1, random));
    all.back().prompt.back() = kNan;
    const auto alone = MakePoisoned(options), beside = MakePoisoned(options);
    const Outcome want = RunAll(*alone, healthy), got = RunAll(*beside, all);
    ExpectSameBytes(got.completions, want.completions);
    EXPECT_TRUE(want.failed.empty());
    for (const GroupRequest& group : healthy) {
      EXPECT_TRUE(want.ended.contains(group.key));
      EXPECT_TRUE(got.ended.contains(group.key)) << "group " << group.key;
    }
    EXPECT_EQ(got.ended.size() + got.failed.size(), all.size());
    EXPECT_FALSE(got.failed.empty());
    for (const auto& [key, status] : got.failed) {
      EXPECT_THAT(status, tandem::testing::FailsWith(absl::StatusCode::kDataLoss,
                                                     "the group failed (non_finite_logits)"));
    }
    const EngineStats stats = beside->Stats();
    EXPECT_EQ(stats.num_groups_failed[static_cast<size_t>(GroupFailure::kNonFiniteLogits)],
              got.failed.size());
    EXPECT_EQ(stats.kv_used_tokens, 0);
  }

  // A new seed each time, so that runs test different groups; it is printed.
  static uint64_t NewSeed() {
    const uint64_t seed = std::random_device()();
    std::cout << "seed " << seed << std::endl;
    return seed;
  }

  inline static std::unique_ptr<tandem::testing::TempDir> directory_;
};

}  // namespace tandem::rollout
