#include <gtest/gtest.h>

#include "rollout_server/server_options.h"

namespace tandem::rollout {
namespace {

TEST(ServerAddressTest, AHostOrAPortReplacesItsPartOfTheAddress) {
  EXPECT_EQ(WithHostAndPort("127.0.0.1:50051", "", -1), "127.0.0.1:50051");
  EXPECT_EQ(WithHostAndPort("127.0.0.1:50051", "", 0), "127.0.0.1:0");
  EXPECT_EQ(WithHostAndPort("127.0.0.1:50051", "localhost", -1), "localhost:50051");
  EXPECT_EQ(WithHostAndPort("127.0.0.1:50051", "0.0.0.0", 7), "0.0.0.0:7");
}

TEST(ServerAddressTest, AnIpv6AddressGetsItsBrackets) {
  EXPECT_EQ(WithHostAndPort("[::1]:50051", "", 7), "[::1]:7");
  EXPECT_EQ(WithHostAndPort("127.0.0.1:50051", "::1", -1), "[::1]:50051");
  EXPECT_EQ(WithHostAndPort("127.0.0.1:50051", "[::]", 7), "[::]:7");
}

}  // namespace
}  // namespace tandem::rollout
