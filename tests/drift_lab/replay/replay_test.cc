#include "drift_lab/replay/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "common/weights/digest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/scored_groups.h"
#include "tests/trainer/toy_model.h"
#include "trainer/experience/group_capture.h"
#include "trainer/train_step.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::FailsWith;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::IsOk;
using ::tandem::testing::ScoredGroup;
using ::tandem::testing::TempDir;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

// beta1 = 0 and no clipping: the first moment after one update is the gradient.
trainer::TrainStepOptions GradientOptions(const offpolicy::MethodOptions& method) {
  trainer::TrainStepOptions options;
  options.correction = method.correction;
  options.loss.objective = method.objective;
  options.optimizer = {.learning_rate = 1e-3, .beta1 = 0, .max_grad_norm = 0};
  return options;
}

// A step of the trainer under `method`: its gradient, all zeros when the update was skipped.
struct Step {
  std::vector<double> gradient;
  trainer::StepReport report;

  Step(const std::vector<ScoredGroup>& groups, const offpolicy::MethodOptions& method) {
    trainer::TrainStepSetup setup{.config = ToyConfig()};
    setup.weights = ToyWeights(setup.config);
    const auto step = trainer::TrainStep::Create(setup, GradientOptions(method)).value();
    report = step->Run(groups).value();
    for (const TensorSource& source : step->OptimizerState()) {
      if (source.spec.name.rfind("exp_avg.", 0) != 0) continue;
      const HostTensor tensor = source.read().value();
      std::vector<float> values(tensor.bytes.size() / 4);
      std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
      gradient.insert(gradient.end(), values.begin(), values.end());
    }
  }
};

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Completions of 1 to 10 tokens whose behaviour log-probs are off the policy's by up to `gap` nats.
std::vector<ScoredGroup> Groups(double gap) {
  std::mt19937 random(3);
  std::vector<ScoredGroup> groups;
  for (int g = 0; g < 10; ++g) {
    const auto ids = [&](int count) {
      std::vector<int32_t> result;
      for (int i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(random() % 32));
      return result;
    };
    groups.push_back(GroupWithPrompt(g, ids(3 + g % 2)));
    for (int i = 0; i < 3; ++i) {
      AddCompletion(groups.back(), ids(1 + (4 * i + g) % 10),
                    i == 0 ? 1.2f : -0.6f + 0.1f * static_cast<float>(g % 5));
    }
  }
  const auto off = offpolicy::ParseMethod("correction.kind=off").value();
  const auto proximal = Step(groups, off).report.proximal_logprobs;
  std::uniform_real_distribution<double> uniform(-gap, gap);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int i = 0; i < 3; ++i) {
      auto* completion = groups[g].mutable_completions(i)->mutable_completion();
      const double centre = uniform(random);
      for (int t = 0; t < completion->token_ids_size(); ++t) {
        const double of_token = proximal[g][static_cast<size_t>(i)][static_cast<size_t>(t)];
        completion->set_behaviour_logprobs(
            t,
            static_cast<float>(std::min(-1e-3, of_token + 0.3 * centre + 0.7 * uniform(random))));
      }
    }
  }
  return groups;
}

// The capture of a step on `groups`, with its model beside it.
std::string WriteCaptureOf(const TempDir& directory, const std::vector<ScoredGroup>& groups,
                           std::vector<std::string> injected = {}) {
  const ModelConfig config = ToyConfig();
  const std::string model = directory.path() + "/model", path = directory.path() + "/capture";
  std::filesystem::create_directories(model);
  std::ofstream(model + "/config.json") << ModelConfigToJson(config, DType::kF32);
  const std::vector<HostTensor> weights = ToyWeights(config);
  EXPECT_THAT(WriteSafetensors(directory.path() + "/v0.safetensors", weights), IsOk());
  const auto off = offpolicy::ParseMethod("correction.kind=off").value();
  trainer::PerToken proximal;
  const auto of_groups = Step(groups, off).report.proximal_logprobs;
  for (size_t g = 0; g < groups.size(); ++g) proximal[groups[g].group_id()] = of_groups[g];
  offpolicy::Capture capture = trainer::CaptureGroups(groups, proximal);
  const DigestMap digests = DigestTensors(weights);
  capture.manifest.model_path = model;
  capture.manifest.sampling.temperature = 1;
  capture.manifest.servers = {{"127.0.0.1:1", "0.1.0", "fp32", "fast", "avx2", "keep"}};
  capture.manifest.trainer = {"fp32", "fast", "avx2", "libtorch", 2048};
  capture.manifest.weights = {
      {0, "nearest", digests, "../v0.safetensors", CombinedDigest(digests)}};
  capture.manifest.injected = std::move(injected);
  EXPECT_THAT(WriteCapture(path, capture), IsOk());
  return path;
}

void Quiet(const std::string&, double) {}

// The claim on which everything else depends: a replay's gradient is the one that training would
// have taken.
TEST(ReplayTest, EveryMethodHasTheGradientThatTheTrainerTakes) {
  const TempDir directory;
  const std::vector<ScoredGroup> groups = Groups(1.5);
  const auto replay =
      RunReplay({.capture = WriteCaptureOf(directory, groups), .selection = {.all = true}}, Quiet);
  ASSERT_THAT(replay, IsOk());
  ASSERT_TRUE(replay->findings.empty()) << replay->findings[0].message;
  EXPECT_EQ(replay->relative_error, 0);
  EXPECT_LT(replay->max_rescore_difference, 1e-5);
  const Step off(groups, replay->numbers.rows[0].variant.options);
  int empty = 0, turned = 0;
  for (const ReplayRow& row : replay->numbers.rows) {
    const std::string name = row.variant.method + " " + row.variant.threshold;
    const Step step(groups, row.variant.options);
    const double norm = std::sqrt(Dot(step.gradient, step.gradient));
    EXPECT_NEAR(row.gradient_norm, norm, 1e-4 * norm + 1e-9) << name;
    empty += norm == 0;
    if (norm == 0) {
      EXPECT_TRUE(std::isnan(row.cosine[0].value)) << name;
      continue;
    }
    const double cosine =
        Dot(step.gradient, off.gradient) / norm / std::sqrt(Dot(off.gradient, off.gradient));
    EXPECT_NEAR(row.cosine[0].value, cosine, 1e-4) << name;
    turned += cosine < 0.99;
  }
  EXPECT_GT(turned, 40);  // the methods are told apart
  EXPECT_GT(empty, 0);    // narrow bounds refuse everything
}

TEST(ReplayTest, WithoutAGapAllMethodsAreOne) {
  const TempDir directory;
  const auto replay = RunReplay({.capture = WriteCaptureOf(directory, Groups(0))}, Quiet);
  ASSERT_THAT(replay, IsOk());
  EXPECT_EQ(replay->num_backward_passes, 30 * 1);  // one direction serves them all
  for (const ReplayRow& row : replay->numbers.rows) {
    const std::string& name = row.variant.method;
    EXPECT_EQ(row.kept.value, 1) << name;
    EXPECT_NEAR(row.ess_fraction.value, 1, 1e-12) << name;
    EXPECT_NEAR(row.mean_weight_negative.value, 1, 1e-12) << name;
    const bool by_completion =
        row.variant.options.objective.normalisation == offpolicy::Normalisation::kSequence;
    if (by_completion) continue;  // another mean of the same gradients: gspo and sapo
    EXPECT_NEAR(row.cosine[0].value, 1, 1e-12) << name;
    EXPECT_NEAR(row.norm_ratio.value, 1, 1e-12) << name;
  }
}

TEST(ReplayTest, ThresholdsFromABaselineRefuseTheStatedShareOfIt) {
  const TempDir directory, baseline_directory;
  const std::string baseline = WriteCaptureOf(baseline_directory, Groups(0.01));
  const auto replay = RunReplay({.capture = WriteCaptureOf(directory, Groups(1.5)),
                                 .selection = {.methods = {"icepop", "z_gate", "tis"}},
                                 .baselines = {baseline},
                                 .baseline_rates = {0.2}},
                                Quiet);
  ASSERT_THAT(replay, IsOk());
  const auto& rows = replay->numbers.rows;
  ASSERT_EQ(rows.size(), kNumReferences + 6);
  EXPECT_EQ(rows[0].baseline_share, 0);
  for (size_t m = kNumReferences + 3; m < rows.size(); ++m) {
    EXPECT_EQ(rows[m].variant.baseline_rate, 0.2);
    if (rows[m].variant.method == "z_gate")
      continue;  // its rate is over completions, the share over tokens
    EXPECT_NEAR(rows[m].baseline_share, 0.2, 0.02) << rows[m].variant.method;
    EXPECT_GT(1 - rows[m].kept.value + (rows[m].variant.method == "tis"), 0.5);
  }
}

TEST(ReplayTest, RefusesWhatCannotBeReplayed) {
  const TempDir directory, other;
  std::vector<ScoredGroup> groups = Groups(0.1);
  for (ScoredGroup& group : groups) {
    for (auto& completion : *group.mutable_completions()) completion.set_advantage(0);
  }
  const std::string capture = WriteCaptureOf(directory, groups);
  EXPECT_THAT(RunReplay({.capture = capture}, Quiet),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "no trained token with an advantage other than 0"));
  offpolicy::Capture unscored = offpolicy::ReadCapture(WriteCaptureOf(other, Groups(0.1))).value();
  for (float& logprob : unscored.proximal_logprobs) logprob = std::nanf("");
  EXPECT_THAT(WriteCapture(other.path() + "/capture", unscored), IsOk());
  EXPECT_THAT(RunReplay({.capture = other.path() + "/capture"}, Quiet),
              FailsWith(absl::StatusCode::kInvalidArgument, "was never in a trainer"));
  const std::string spoilt = WriteCaptureOf(other, Groups(0.1), {"temperature 0.9"});
  EXPECT_THAT(
      RunReplay({.capture = capture, .baselines = {spoilt}}, Quiet),
      FailsWith(absl::StatusCode::kInvalidArgument, "is not a baseline: faults were injected"));
}

}  // namespace
}  // namespace tandem::drift
