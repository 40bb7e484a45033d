#include "rollout_server/engine/kv_block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace tandem::rollout {
namespace {

TEST(KvBlockPool, CountsTheBlocksOfANumberOfTokens) {
  EXPECT_EQ(KvBlockPool::BlocksFor(0), 0);
  EXPECT_EQ(KvBlockPool::BlocksFor(1), 1);
  EXPECT_EQ(KvBlockPool::BlocksFor(16), 1);
  EXPECT_EQ(KvBlockPool::BlocksFor(17), 2);
}

TEST(KvBlockPool, HandsOutEveryBlockOnce) {
  KvBlockPool pool(4);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.Allocate());
  EXPECT_THAT(blocks, ::testing::UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(KvBlockPool, FreesABlockWhenItsLastHolderReleasesIt) {
  KvBlockPool pool(2);
  const BlockId block = pool.Allocate();
  pool.Share(block);
  EXPECT_EQ(pool.holders(block), 2);
  pool.Release(block);
  EXPECT_EQ(pool.num_free(), 1);
  pool.Release(block);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.holders(block), 0);
}

TEST(KvBlockPoolDeathTest, DiesOnAllocatingFromAnEmptyPool) {
  KvBlockPool pool(1);
  pool.Allocate();
  EXPECT_DEATH(pool.Allocate(), "");
}

TEST(KvBlockPoolDeathTest, DiesOnReleasingABlockNobodyHolds) {
  KvBlockPool pool(1);
  pool.Release(pool.Allocate());
  EXPECT_DEATH(pool.Release(0), "");
}

// Random operations against a plain map of holders.
TEST(KvBlockPool, AgreesWithAMapOfHoldersOverRandomOperations) {
  constexpr int64_t kBlocks = 13;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    KvBlockPool pool(kBlocks);
    std::map<BlockId, int> held;
    for (int step = 0; step < 2000; ++step) {
      const int operation = static_cast<int>(random() % 3);
      auto one = held.begin();
      if (!held.empty()) std::advance(one, random() % held.size());
      if (operation == 0 && pool.num_free() > 0) {
        const BlockId block = pool.Allocate();
        ASSERT_FALSE(held.contains(block)) << "seed " << seed << ", step " << step;
        held[block] = 1;
      } else if (operation == 1 && !held.empty()) {
        pool.Share(one->first);
        ++one->second;
      } else if (operation == 2 && !held.empty()) {
        pool.Release(one->first);
        if (--one->second == 0) held.erase(one);
      }
      ASSERT_EQ(pool.num_free(), kBlocks - static_cast<int64_t>(held.size()));
      for (BlockId b = 0; b < kBlocks; ++b) {
        ASSERT_EQ(pool.holders(b), held.contains(b) ? held[b] : 0);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::rollout
