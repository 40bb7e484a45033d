// RefereeTest: rows of random tokens of a small model and what the trainer's forward pass says of
// them, for tests of the referee.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_config.h"
#include "drift_lab/referee/referee.h"
#include "drift_lab/screening/token_pairs.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/policy.h"

namespace tandem::drift::testing {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::TinyModelConfig;
using ::tandem::testing::TinyModelTensors;
using ::tandem::testing::WriteTinyModel;

inline constexpr int64_t kPrompt = 6, kDrawn = 16, kRows = 14;

// Rows of random tokens, and what the trainer's forward pass says of them: an engine that shares no
// line with the referee.
class RefereeTest : public ::testing::Test {
 protected:
  explicit RefereeTest(const ModelConfig& config = TinyModelConfig()) : config_(config) {
    EXPECT_THAT(WriteTinyModel(model_.path(), TANDEM_SOURCE_DIR, config_, 1), IsOk());
    EXPECT_THAT(WriteTinyModel(other_.path(), TANDEM_SOURCE_DIR, config_, 2), IsOk());
    std::mt19937 random(3);
    records_.header.eos_token_ids = {2};
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t t = 0; t < kPrompt + kDrawn; ++t) {
        records_.token_ids.push_back(static_cast<int32_t>(3 + random() % 400));
        records_.drawn.push_back(t >= kPrompt ? 1 : 0);
      }
      records_.offsets.push_back(static_cast<int64_t>(records_.token_ids.size()));
      records_.rows.emplace_back();
    }
    SetColumn(Column::kProximal, TrainerSays(config_, 1));
    options_ = {.model = model_.path(),
                .screen_tokens = 64,
                .verify_tokens = 160,
                .budget_seconds = 600,
                .num_threads = 1};
  }

  std::vector<float> TrainerSays(const ModelConfig& config, uint64_t seed, double temperature = 1,
                                 ComputeDType dtype = ComputeDType::kFp32) const {
    const auto policy = trainer::Policy::Create(config, TinyModelTensors(config_, seed), dtype,
                                                /*trainable=*/false);
    EXPECT_THAT(policy, IsOk());
    std::vector<float> out;
    for (int64_t row = 0; row < kRows; ++row) {
      const std::span<const int32_t> ids = records_.of_row(records_.token_ids, row);
      trainer::GroupTokens group{.prompt = ids.first(kPrompt)};
      group.completions.emplace_back(ids.subspan(kPrompt));
      const trainer::PackedRow packed = trainer::PackRow({&group, 1}).value();
      const auto scores = (*policy)->Score(packed, temperature, /*with_gradient=*/false);
      EXPECT_THAT(scores, IsOk());
      const float* const logprobs = scores->logprobs.const_data_ptr<float>();
      for (int64_t t = 0; t < packed.num_tokens(); ++t) {
        out.push_back(t < kPrompt ? std::numeric_limits<float>::quiet_NaN() : logprobs[t]);
      }
    }
    return out;
  }

  void SetColumn(Column column, std::vector<float> values) {
    records_.columns[static_cast<size_t>(column)] = std::move(values);
  }

  // The behaviour side's verdict where it says `values`.
  SideReport JudgeBehaviour(std::vector<float> values) {
    SetColumn(Column::kBehaviour, std::move(values));
    const auto report =
        RunReferee(records_, PairsOf(records_), options_, [](const std::string&, double) {});
    EXPECT_THAT(report, IsOk());
    EXPECT_EQ(report->sides.at(1).status, SideStatus::kSameNumbers)
        << "the healthy side is accused";
    return report->sides.at(0);
  }

  const ModelConfig config_;
  const TempDir model_, other_;
  Records records_;
  RefereeOptions options_;
};

}  // namespace tandem::drift::testing
