#include "common/model/numerics_self_test.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using testing::IsOk;

TEST(CheckInvarianceTest,
     HoldsForEveryInstructionSetOfThisMachineAndForSizesThatAreNoMultipleOfARegister) {
  ModelConfig config;
  config.vocab_size = 1001;
  config.hidden_size = 60;
  config.intermediate_size = 98;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 12;
  for (const InstructionSet set : SupportedInstructionSets()) {
    EXPECT_THAT(CheckInvariance(config, set), IsOk()) << InstructionSetName(set);
  }
}

}  // namespace
}  // namespace tandem
