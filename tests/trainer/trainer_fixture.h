// TrainerTest: the trainer's loop against a scripted server and a learner that counts: no LibTorch.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/files/file_system.h"
#include "nlohmann/json.hpp"
#include "tests/support/fake_rollout_server.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "trainer/trainer.h"

namespace tandem::trainer {

inline HostTensor Tensor(const std::string& name, float value) {
  auto owner = std::make_shared<std::vector<float>>(4, value);
  return {
      .spec = {name, DType::kF32, {4}}, .bytes = std::as_bytes(std::span(*owner)), .owner = owner};
}

// Its one weight is the number of steps it was trained for.
class CountingLearner : public Learner {
 public:
  explicit CountingLearner(std::vector<std::vector<int64_t>>* trained) : trained_(trained) {}

  absl::StatusOr<LearnerReport> Train(const std::vector<experience::v1::ScoredGroup>& groups,
                                      WeightVersion) override {
    if (skip || skip_first-- > 0) return LearnerReport{.skip_reason = "the loss is nan"};
    trained_->emplace_back();
    for (const auto& group : groups) trained_->back().push_back(group.group_id());
    ++updates_;
    LearnerReport report = {.metrics = {{"loss/total", 0.5}}, .num_tokens = 8};
    if (static_cast<size_t>(updates_) <= kl.size()) {
      report.metrics.emplace_back("kl_reference/k3", kl[static_cast<size_t>(updates_) - 1]);
    }
    if (advantages.empty()) return report;
    for (const auto& group : groups) {
      report.advantages[group.group_id()].resize(static_cast<size_t>(group.completions_size()),
                                                 advantages);
    }
    return report;
  }
  // Token t of a completion has log-prob -1 - t / 8.
  absl::StatusOr<GroupLogprobs> Score(const std::vector<experience::v1::ScoredGroup>& groups,
                                      const ScoredWeights&) override {
    if (updates_ == fails_to_score_after) return absl::InternalError("cannot score");
    GroupLogprobs scores;
    for (const auto& group : groups) {
      scores.emplace_back();
      for (const auto& member : group.completions()) {
        scores.back().emplace_back();
        for (int t = 0; t < member.completion().token_ids_size(); ++t) {
          scores.back().back().push_back(-1 - static_cast<float>(t) / 8);
        }
      }
    }
    return scores;
  }
  absl::StatusOr<double> DistanceFromStart() const override {
    return static_cast<double>(updates_);
  }
  absl::StatusOr<CastWeights> Cast(DType) override {
    return CastWeights{.tensors = {Present(Tensor("w", static_cast<float>(updates_)))},
                       .numbers = {.changed_share = 1, .update_norm = 1}};
  }
  absl::StatusOr<KeptMasters> Keep() override {
    return KeptMasters{1, {Present(Tensor("w", static_cast<float>(updates_)))}, nullptr};
  }
  absl::StatusOr<LearnerState> Save() override {
    return LearnerState{
        {Present(Tensor("w", static_cast<float>(updates_)))}, {Present(Tensor("m", 0))}, updates_};
  }
  absl::Status Restore(const LearnerState& state) override {
    updates_ = state.num_updates;
    return absl::OkStatus();
  }
  std::string StartDigest() const override { return start_digest; }
  int64_t num_parameters() const override { return 4; }
  std::string library_version() const override { return "none"; }
  std::string kernels() const override { return "none"; }

  bool skip = false;
  int64_t skip_first = 0;  // so many steps
  std::string start_digest = "the model's";
  std::vector<float> advantages;  // of every completion's tokens in the loss; empty: not reported
  int64_t fails_to_score_after = -1;  // so many updates
  std::vector<double> kl;             // kl_reference/k3 of each update; of later ones there is none

 private:
  std::vector<std::vector<int64_t>>* const trained_;
  int64_t updates_ = 0;
};

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    const std::string data = TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer";
    model_ = directory_ / "model";
    EXPECT_THAT(MakeDirectories(model_), testing::IsOk());
    for (const auto& file : std::filesystem::directory_iterator(data)) {
      std::filesystem::copy(file, model_);
    }
    const std::string config =
        R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152,
            "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_act": "silu",
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "eos_token_id": 2,
            "tie_word_embeddings": true})";
    EXPECT_THAT(WriteFileAtomically(model_ + "/config.json", config), testing::IsOk());
    auto tokenizer = Tokenizer::Load(model_);
    EXPECT_THAT(tokenizer, testing::IsOk());
    server_ = std::make_unique<testing::FakeRolloutServer>(std::vector<HostTensor>{Tensor("w", 0)},
                                                           (*tokenizer)->hash());
    // Completion 0 is right: "0" is the answer of every prompt.
    EXPECT_THAT(WriteFileAtomically(directory_ / "p.jsonl",
                                    "{\"prompt\":\"a\",\"answer\":\"0\"}\n"
                                    "{\"prompt\":\"b\",\"answer\":\"0\"}\n"
                                    "{\"prompt\":\"c\",\"answer\":\"0\"}\n"),
                testing::IsOk());
    options_.run_name = "r";
    options_.out = directory_.path();
    options_.model = model_;
    options_.servers = {server_->address()};
    options_.steps = 3;
    options_.prompts_per_step = 2;
    options_.completions_per_prompt = 2;
    options_.sampling.max_new_tokens = 8;
    options_.data.train = directory_ / "p.jsonl";
    options_.client.server_patience_seconds = 10;
    options_.client.retry_initial_seconds = 0.02;
    options_.log.level = log::Level::kError;
  }

  absl::Status Run(RunMode mode = RunMode::kFresh) {
    auto learner = std::make_unique<CountingLearner>(&trained_);
    learner->skip = skip_;
    learner->start_digest = start_digest_;
    learner->skip_first = skip_first_;
    learner->advantages = advantages_;
    learner->fails_to_score_after = fails_to_score_after_;
    learner->kl = kl_;
    auto trainer = Trainer::Create(options_, std::move(learner),
                                   {.mode = mode,
                                    .resolved_config = "trainer: {}\n",
                                    .progress =
                                        [this](const std::string& line) {
                                          progress_.push_back(nlohmann::json::parse(line));
                                          if (on_progress_) on_progress_(progress_.back());
                                        },
                                    .stop = &stop_,
                                    .observation = &observation_,
                                    .health = &health_,
                                    .resolver = resolver_});
    if (!trainer.ok()) return trainer.status();
    return (*trainer)->Run();
  }

  std::vector<nlohmann::json> Lines(const std::string& file) {
    std::istringstream contents(*ReadFile(directory_ / ("r/" + file)));
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(contents, line);)
      lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  std::vector<std::string> Events() {
    std::vector<std::string> kinds;
    for (const nlohmann::json& event : Lines("events.jsonl")) kinds.push_back(event["kind"]);
    return kinds;
  }

  testing::TempDir directory_;
  std::string model_;
  StopSignal stop_;
  Observation observation_{"trainer"};
  TrainerHealth health_{observation_.health(), 60};
  std::unique_ptr<testing::FakeRolloutServer> server_;
  TrainerOptions options_;
  bool skip_ = false;
  int64_t skip_first_ = 0;
  std::string start_digest_ = "the model's";
  std::vector<float> advantages_;
  int64_t fails_to_score_after_ = -1;
  std::vector<double> kl_;
  std::vector<std::vector<int64_t>> trained_;
  std::vector<nlohmann::json> progress_;
  std::function<void(const nlohmann::json&)> on_progress_;
  Resolver resolver_ = ResolveHost;
};

}  // namespace tandem::trainer
