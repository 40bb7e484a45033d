// What `tandem reward` shows: the rewards that a function in Python gives, as a table with
// statistics, or as JSON. Pure. Used by reward.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "trainer/rewards/reward.h"

namespace tandem::cli {

struct TriedCompletion {
  std::string text;
  trainer::Reward reward;
};

// A line of the data with completions that were asked about in one call.
struct TriedRow {
  int64_t line = 0;    // of the data, from 1
  std::string prompt;  // to show
  std::string answer;
  std::vector<TriedCompletion> completions;
  double seconds = 0;  // of the call
};

struct TriedReward {
  std::string function, data;
  std::string completions_are;  // where they come from, to show
  std::vector<TriedRow> rows;
  std::vector<std::string> tracebacks;
};

struct RewardStatistics {
  int64_t num_completions = 0;
  int64_t num_rewarded = 0;
  int64_t num_none = 0;            // left out by the function
  int64_t num_failed = 0;          // raised, took too long ..
  double mean = 0, deviation = 0;  // of those with a reward; the deviation is that of a sample
  int64_t num_groups = 0;          // rows with at least two rewards
  int64_t num_zero_variance = 0;   // of them, with equal ones: nothing is learned from them
  double seconds_per_call = 0;
};
RewardStatistics StatisticsOf(const TriedReward& tried);

// The reward with those of steps and tokens.
double TotalOf(const trainer::Reward& reward);

std::string RewardTable(const TriedReward& tried);
nlohmann::ordered_json RewardJson(const TriedReward& tried);

}  // namespace tandem::cli
