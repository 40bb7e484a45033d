#include "cli/run_file/yaml_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kDefaults[] =
    "launch:\n"
    "  num_servers: 1\n"
    "trainer:\n"
    "  steps: 100\n"
    "  reward:\n"
    "    weights: {number_answer: 1}\n"
    "  log:\n"
    "    file: \"\"\n";

TEST(YamlChangesTest, NamesEveryKnobThatIsNotAtItsDefaultWithItsSections) {
  EXPECT_THAT(ChangedKnobs(kDefaults,
                           "launch:\n"
                           "  num_servers: 2\n"
                           "trainer:\n"
                           "  steps: 100\n"
                           "  reward:\n"
                           "    weights: {number_answer: 1, length: -0.5}\n"
                           "  log:\n"
                           "    file: \"a: b\"\n"),
              ElementsAre("launch.num_servers: 2  (default 1)",
                          "trainer.reward.weights: {number_answer: 1, length: -0.5}  (default "
                          "{number_answer: 1})",
                          "trainer.log.file: \"a: b\"  (default \"\")"));
}

TEST(YamlChangesTest, DefaultsChangeNothing) {
  EXPECT_THAT(ChangedKnobs(kDefaults, kDefaults), IsEmpty());
}

}  // namespace
}  // namespace tandem::cli
