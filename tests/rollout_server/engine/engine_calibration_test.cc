// The engine's samples against its own log-probs: if tokens are sampled from the distributions
// whose log-probs are reported, sum(-log mu - H) over many of them is noise of a known size.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "rollout_server/engine/engine.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::rollout {
namespace {

using tandem::testing::IsOk;

constexpr int64_t kGroups = 68, kMembers = 64, kNewTokens = 240;
static_assert(kGroups * kMembers * kNewTokens > 1'000'000);

// z = sum(-log mu - H) / sqrt(sum(m2 - H^2)).
struct Calibration {
  double surprise = 0, variance = 0;
  int64_t tokens = 0;

  void Add(float logprob, float entropy, float second_moment) {
    surprise += -double{logprob} - entropy;
    variance += second_moment - double{entropy} * entropy;
    ++tokens;
  }
  double z() const { return surprise / std::sqrt(variance); }
};

struct Stream {
  Calibration reported;   // behaviour log-probs
  Calibration unchanged;  // raw log-probs in their place: of another distribution unless T is 1
};

class EngineCalibrationTest : public ::testing::TestWithParam<SamplingParams> {};

Stream Draw(const SamplingParams& sampling) {
  tandem::testing::TempDir directory;
  ModelConfig config = tandem::testing::TinyModelConfig();
  config.vocab_size = 512;
  EXPECT_THAT(tandem::testing::WriteTinyModel(directory.path(), TANDEM_SOURCE_DIR, config, 3),
              IsOk());
  EngineOptions options;
  options.dtype = ComputeDType::kFp32;
  options.kv_capacity_tokens = kMembers * 256;
  options.max_batch_sequences = kMembers;
  options.num_threads = 1;  // steps of a tiny model: a second thread waits more than it works
  const auto engine = Engine::Create(directory.path(), options);
  EXPECT_THAT(engine, IsOk());
  Stream stream;
  for (GroupKey key = 0; key < kGroups; ++key) {
    GroupRequest request;
    request.key = key;
    request.prompt = {static_cast<int32_t>(3 + key), 7, 11};
    request.num_completions = kMembers;
    request.sampling = sampling;
    request.sampling.max_new_tokens = kNewTokens;
    request.sampling.ignore_eos = true;
    request.sampling.seed = 77 + static_cast<uint64_t>(key);
    EXPECT_THAT((*engine)->Add(std::move(request)), IsOk());
  }
  while ((*engine)->HasWork()) {
    const auto events = (*engine)->Step();
    EXPECT_THAT(events, IsOk());
    if (!events.ok()) break;
    for (const EngineEvent& event : *events) {
      const auto* finished = std::get_if<CompletionFinished>(&event);
      if (finished == nullptr) continue;
      const FinishedCompletion& c = finished->completion;
      for (size_t t = 0; t < c.token_ids.size(); ++t) {
        stream.reported.Add(c.behaviour_logprobs[t], c.entropies[t], c.logprob_second_moments[t]);
        stream.unchanged.Add(c.raw_logprobs[t], c.entropies[t], c.logprob_second_moments[t]);
      }
    }
  }
  return stream;
}

TEST_P(EngineCalibrationTest, AMillionTokensAreAsSurprisingAsTheirLogProbsSay) {
  const Stream stream = Draw(GetParam());
  EXPECT_EQ(stream.reported.tokens, kGroups * kMembers * kNewTokens);
  EXPECT_LT(std::abs(stream.reported.z()), 4);
  RecordProperty("z", std::to_string(stream.reported.z()));
  // The test can fail: it detects log-probs of a slightly different distribution.
  if (GetParam().temperature != 1) {
    EXPECT_GT(std::abs(stream.unchanged.z()), 20);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Samplings, EngineCalibrationTest,
    ::testing::Values(SamplingParams{}, SamplingParams{.temperature = 0.8f},
                      SamplingParams{.temperature = 0.8f, .top_k = 40, .top_p = 0.9f}),
    [](const auto& info) {
      return info.param.top_k > 0 ? "Filtered" : info.param.temperature == 1 ? "Plain" : "Tempered";
    });

}  // namespace
}  // namespace tandem::rollout
