#include "trainer/preferences/preference_loss_options.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using Kind = PreferenceLossKind;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

PreferenceLossOptions Load(const std::string& yaml) {
  PreferenceLossOptions options;
  OptionBinder binder;
  BindOptions(binder, options);
  EXPECT_THAT(binder.LoadString(yaml, "test"), IsOk());
  return options;
}

TEST(PreferenceLossOptions, AreReadByName) {
  const PreferenceLossOptions options = Load(
      "{kind: simpo, beta: 2.5, label_smoothing: 0.1, ld_alpha: 0.5, rpo_alpha: 1, cpo_alpha: 0.2, "
      "simpo_gamma: 1.5, desirable_weight: 1.3, undesirable_weight: 0.7}");
  EXPECT_EQ(options.kind, Kind::kSimpo);
  EXPECT_EQ(Beta(options), 2.5);
  EXPECT_EQ(options.label_smoothing, 0.1);
  EXPECT_EQ(options.ld_alpha, 0.5);
  EXPECT_EQ(NllWeight(options), 1);
  EXPECT_EQ(options.cpo_alpha, 0.2);
  EXPECT_EQ(options.simpo_gamma, 1.5);
  EXPECT_EQ(options.desirable_weight, 1.3);
  EXPECT_EQ(options.undesirable_weight, 0.7);
}

TEST(PreferenceLossOptions, BetaIsThatOfTheLossUnlessItIsSet) {
  EXPECT_EQ(Beta({.kind = Kind::kSimpo}), 2);
  EXPECT_EQ(Beta({.kind = Kind::kDpo}), 0.1);
  EXPECT_EQ(Beta({.kind = Kind::kOrpo, .beta = 0.3}), 0.3);
}

TEST(PreferenceLossOptions, CpoAndOrpoHaveANegativeLogLikelihoodByDefault) {
  EXPECT_EQ(NllWeight({.kind = Kind::kDpo}), 0);
  EXPECT_EQ(NllWeight({.kind = Kind::kCpo, .cpo_alpha = 0.5}), 0.5);
  EXPECT_EQ(NllWeight({.kind = Kind::kOrpo}), 1);
}

TEST(CheckPreferenceLossOptions, RefusesWhatTheLossWouldIgnore) {
  const auto refused = [](const PreferenceLossOptions& options, const char* message) {
    EXPECT_THAT(CheckOptions(options, false),
                FailsWith(absl::StatusCode::kInvalidArgument, message));
  };
  refused({.kind = Kind::kIpo, .label_smoothing = 0.1}, "only dpo, dpo_norm, robust, exo");
  refused({.kind = Kind::kExo}, "exo needs the probability of the rejected completion");
  refused({.kind = Kind::kCpo, .rpo_alpha = 1}, "cpo has cpo_alpha");
  refused({.kind = Kind::kDpo, .cpo_alpha = 0.5}, "cpo_alpha is 0.5, but only cpo has it");
  refused({.kind = Kind::kCpo, .simpo_gamma = 1}, "simpo_gamma is 1, but only simpo has it");
  refused({.kind = Kind::kOrpo, .desirable_weight = 2}, "desirable_weight is 2, but only kto");
  refused({.kind = Kind::kIpo, .undesirable_weight = 0}, "undesirable_weight is 0, but only kto");
  refused({.kind = Kind::kKto, .ld_alpha = 0.5}, "no pair whose lengths could be compared");
  EXPECT_THAT(CheckOptions({.kind = Kind::kOrpo}, true),
              FailsWith(absl::StatusCode::kInvalidArgument, "leave the margins out"));
}

TEST(CheckPreferenceLossOptions, TakesEveryLossWithItsDefaults) {
  for (const Kind kind :
       {Kind::kDpo, Kind::kDpoNorm, Kind::kDpoHinge, Kind::kIpo, Kind::kRobust, Kind::kApoZero,
        Kind::kApoDown, Kind::kCpo, Kind::kSimpo, Kind::kOrpo, Kind::kKto}) {
    EXPECT_THAT(CheckOptions({.kind = kind}, false), IsOk());
  }
  EXPECT_THAT(CheckOptions({.kind = Kind::kExo, .label_smoothing = 1e-3}, false), IsOk());
  EXPECT_THAT(CheckOptions({.kind = Kind::kRobust, .label_smoothing = 0.1}, true), IsOk());
}

}  // namespace
}  // namespace tandem::trainer
