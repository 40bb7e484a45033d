#include "rollout_server/service/call_context.h"

#include <gtest/gtest.h>

namespace tandem::rollout {
namespace {

TEST(PeerHostTest, ACallComesFromTheHostOfItsPeer) {
  EXPECT_EQ(PeerHost("ipv4:10.0.0.5:43210"), "10.0.0.5");
  EXPECT_EQ(PeerHost("ipv6:%5B::1%5D:4711"), "::1");
  EXPECT_EQ(PeerHost("ipv6:[fe80::7]:4711"), "fe80::7");
  EXPECT_EQ(PeerHost("unix:/run/tandem.sock"), "127.0.0.1");
}

TEST(PeerHostTest, WhatIsNoPeerHasNoHost) {
  for (const char* const peer : {"", "ipv4:", "ipv6:", "ipv6:::1", "vsock:3:4", "ipv6:]:1"}) {
    EXPECT_EQ(PeerHost(peer), "") << peer;
  }
}

}  // namespace
}  // namespace tandem::rollout
