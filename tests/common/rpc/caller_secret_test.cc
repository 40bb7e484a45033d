#include "common/rpc/caller_secret.h"

#include <gtest/gtest.h>

namespace tandem::rpc {
namespace {

TEST(CallerSecret, EachIsOf256BitsAndItsOwn) {
  const std::string one = NewSecret(), other = NewSecret();
  EXPECT_EQ(one.size(), 64u);
  EXPECT_EQ(one.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(one, other);
}

// The second test case of RFC 4231.
TEST(CallerSecret, AServerIsShownTheHmacOfItsAddress) {
  EXPECT_EQ(KeyedDigest("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(SecretForServer("Jefe", "what do ya want for nothing?"),
            KeyedDigest("Jefe", "what do ya want for nothing?"));
  EXPECT_NE(SecretForServer("secret", "10.0.0.1:1"), SecretForServer("secret", "10.0.0.2:1"));
}

TEST(CallerSecret, MatchesOnlyTheSame) {
  EXPECT_TRUE(SecretsMatch("same", "same"));
  EXPECT_FALSE(SecretsMatch("same", "samf"));
  EXPECT_FALSE(SecretsMatch("same", "same "));
  EXPECT_FALSE(SecretsMatch("same", ""));
}

}  // namespace
}  // namespace tandem::rpc
