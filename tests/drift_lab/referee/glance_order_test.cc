#include "drift_lab/referee/glance_order.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

namespace tandem::drift {
namespace {

Suspect Strength(const std::string& cause, const std::string& text, bool rounds = false) {
  Suspect suspect{cause, text, ""};
  suspect.rounds = rounds;
  return suspect;
}

const std::vector<Suspect> kSuspects = {
    Strength("rope_theta", "theta 1"),          Strength("rope_theta", "theta 2"),
    Strength("attention_window", "window 1"),   Strength("attention_window", "window 2"),
    Strength("attention_window", "window 3"),   Strength("prompt", "first missing"),
    Strength("prompt", "last missing"),         Strength("quantised_weights", "int8", true),
    Strength("quantised_weights", "int4", true)};

// The texts in the order in which they are looked at, where each does as well as `well` says.
std::vector<std::string> OrderWhere(const std::map<std::string, double>& well) {
  GlanceOrder order(kSuspects);
  std::vector<std::string> texts;
  while (const Suspect* suspect = order.Next()) {
    texts.push_back(suspect->text);
    order.Report(well.contains(suspect->text) ? well.at(suspect->text) : 0.1);
  }
  EXPECT_EQ(order.num_left(), 0);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(GlanceOrderTest, OneStrengthOfEveryCauseComesFirst) {
  EXPECT_EQ(OrderWhere({}), (Texts{"theta 1", "window 1", "first missing", "last missing", "int8",
                                   "int4", "theta 2", "window 2", "window 3"}));
}

TEST(GlanceOrderTest, OtherStrengthsOfACauseThatDoesWellComeNext) {
  EXPECT_EQ(OrderWhere({{"window 1", 0.6}}),
            (Texts{"theta 1", "window 1", "window 2", "window 3", "first missing", "last missing",
                   "int8", "int4", "theta 2"}));
}

TEST(GlanceOrderTest, TheRestComesByHowWellItsCauseDid) {
  EXPECT_EQ(OrderWhere({{"window 1", 0.3}, {"theta 1", std::numeric_limits<double>::quiet_NaN()}}),
            (Texts{"theta 1", "window 1", "first missing", "last missing", "int8", "int4",
                   "window 2", "window 3", "theta 2"}));
}

}  // namespace
}  // namespace tandem::drift
