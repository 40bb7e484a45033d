// Sign: one thing that the numbers of a records file show, rule out or leave open. Every screening
// function returns signs, screening.h orders them, the pages print them. Plain data.
//
// A sign that accuses names a fault of one side or of the file. Over a healthy record, the chance
// that any sign accuses is at most kRecordLevel: each statistical test has the level kTestLevel
// (Bonferroni), and asks for an effect of a size besides.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "common/statistics/cluster_bootstrap.h"

namespace tandem::drift {

inline constexpr double kRecordLevel = 0.01;
inline constexpr int kNumTests = 20;  // at most so many tests are made of one record
inline constexpr double kTestLevel = kRecordLevel / kNumTests;

enum class SignVerdict : uint8_t {
  kShown,         // the numbers show it
  kSuspected,     // they look like it, and other things look the same
  kNeedsWeights,  // a replay with the weights would decide: `command`
  kCannotTell,    // the record lacks what the test needs
  kRuledOut,      // the numbers rule it out
};
const char* SignVerdictName(SignVerdict verdict);  // "shown", "suspected", "needs_weights", ...

// The side that the sign is about. kUnknown: the numbers do not tell which of the two.
enum class SignSide : uint8_t { kBehaviour, kProximal, kBoth, kUnknown };
const char* SignSideName(SignSide side);

struct Sign {
  std::string id;  // of the thing looked for, such as "shift"; stable
  SignVerdict verdict = SignVerdict::kCannotTell;
  SignSide side = SignSide::kUnknown;
  bool accuses = false;   // shown, and a fault that nobody has declared
  std::string statement;  // one full sentence with its evidence

  std::string statistic;  // what `value` is; empty: there is no number
  // The statistic's value, with an interval where there is one; NaN where it was not computed.
  offpolicy::Interval value{.value = std::numeric_limits<double>::quiet_NaN()};
  double p_value = std::numeric_limits<double>::quiet_NaN();
  // An upper bound of the chance that a healthy record shows this. NaN unless shown.
  double false_alarm_rate = std::numeric_limits<double>::quiet_NaN();

  std::string command;  // what to run or do next; empty: nothing
};

}  // namespace tandem::drift
