#include "rollout_server/engine/schedule/kv_block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
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
  for (int i = 0; i < 4; ++i) blocks.push_back(*pool.Allocate());
  EXPECT_THAT(blocks, ::testing::UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_EQ(pool.num_available(), 0);
  EXPECT_EQ(pool.Allocate(), std::nullopt);
}

TEST(KvBlockPool, FreesABlockWhenItsLastHolderReleasesIt) {
  KvBlockPool pool(2);
  const BlockId block = *pool.Allocate();
  pool.Share(block);
  EXPECT_EQ(pool.holders(block), 2);
  pool.Release(block);
  EXPECT_EQ(pool.num_available(), 1);
  pool.Release(block);
  EXPECT_EQ(pool.num_available(), 2);
  EXPECT_EQ(pool.holders(block), 0);
}

BlockName Name(int32_t id) {
  return NextName(ChainStart(0, 0), std::vector<int32_t>(KvBlockPool::kBlockTokens, id));
}

TEST(KvBlockPool, ANamedBlockIsFoundWhileHeldAndAfter) {
  KvBlockPool pool(2);
  const BlockId block = *pool.Allocate();
  EXPECT_EQ(pool.Find(Name(1)), std::nullopt);
  pool.Publish(block, Name(1), 0);
  EXPECT_EQ(pool.Find(Name(1)), block);
  EXPECT_EQ(pool.holders(block), 2);
  pool.Release(block);
  pool.Release(block);
  EXPECT_EQ(pool.num_findable(), 1);
  EXPECT_EQ(pool.num_available(), 2);
  EXPECT_EQ(pool.Find(Name(1)), block);
  EXPECT_EQ(pool.holders(block), 1);
  EXPECT_EQ(pool.num_findable(), 0);
}

TEST(KvBlockPool, TheLeastRecentlyUsedNameGivesItsPlaceFirst) {
  KvBlockPool pool(2);
  const BlockId first = *pool.Allocate(), second = *pool.Allocate();
  pool.Publish(first, Name(1), 0);
  pool.Publish(second, Name(2), 0);
  pool.Release(first);
  pool.Release(second);
  pool.Release(*pool.Find(Name(1)));  // now the second is the one used longest ago
  EXPECT_EQ(pool.Allocate(), second);
  EXPECT_EQ(pool.num_evictions(), 1u);
  EXPECT_EQ(pool.Find(Name(2)), std::nullopt);
  EXPECT_EQ(pool.Find(Name(1)), first);
}

TEST(KvBlockPool, ASecondBlockOfTheSameContentStaysNameless) {
  KvBlockPool pool(2);
  const BlockId first = *pool.Allocate(), second = *pool.Allocate();
  pool.Publish(first, Name(1), 0);
  pool.Publish(second, Name(1), 0);
  pool.Release(second);
  EXPECT_EQ(pool.num_findable(), 0);
  EXPECT_EQ(pool.Find(Name(1)), first);
}

TEST(KvBlockPool, ForgetsEveryNameAtOnce) {
  KvBlockPool pool(3);
  const BlockId held = *pool.Allocate(), left = *pool.Allocate();
  pool.Publish(held, Name(1), 0);
  pool.Publish(left, Name(2), 0);
  pool.Release(left);
  pool.ForgetNames();
  EXPECT_EQ(pool.num_findable(), 0);
  EXPECT_EQ(pool.num_available(), 2);
  EXPECT_EQ(pool.Find(Name(1)), std::nullopt);
  EXPECT_EQ(pool.Find(Name(2)), std::nullopt);
  EXPECT_EQ(pool.num_evictions(), 0u);
}

TEST(PrefixChain, ANameCoversThePrefixAndTheWeights) {
  const std::vector<int32_t> a(16, 1), b(16, 2);
  const BlockName start = ChainStart(3, 0);
  EXPECT_EQ(NextName(NextName(start, a), b), NextName(NextName(start, a), b));
  EXPECT_NE(NextName(NextName(start, a), b), NextName(NextName(start, b), b));
  EXPECT_NE(NextName(start, a), NextName(ChainStart(4, 0), a));
  EXPECT_NE(NextName(start, a), NextName(ChainStart(3, 1), a)) << "under an adapter";
}

TEST(KvBlockPoolDeathTest, DiesOnReleasingABlockNobodyHolds) {
  KvBlockPool pool(1);
  pool.Release(*pool.Allocate());
  EXPECT_DEATH(pool.Release(0), "");
}

// Random operations against a plain map of holders.
TEST(KvBlockPool, AgreesWithAMapOfHoldersOverRandomOperations) {
  constexpr int64_t kBlocks = 13;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    KvBlockPool pool(kBlocks);
    std::map<BlockId, int> held;
    std::map<BlockId, int32_t> published;  // since it was allocated
    int32_t next_name = 0;
    for (int step = 0; step < 3000; ++step) {
      const auto some = [&] { return std::next(held.begin(), random() % held.size()); };
      const int operation = static_cast<int>(random() % 5);
      if (operation == 0) {
        const auto block = pool.Allocate();
        ASSERT_EQ(block.has_value(), held.size() < kBlocks);
        if (block) {
          ASSERT_TRUE(held.emplace(*block, 1).second);
          published.erase(*block);
        }
      } else if (operation == 1 && !published.empty()) {
        // Found as long as it was not allocated anew.
        const auto& [block, name] = *std::next(published.begin(), random() % published.size());
        ASSERT_EQ(pool.Find(Name(name)), block);
        ++held[block];
      } else if (held.empty()) {
        continue;
      } else if (operation == 2) {
        const auto one = some();
        pool.Share(one->first);
        ++one->second;
      } else if (operation == 3) {
        const BlockId block = some()->first;
        if (!published.contains(block))
          pool.Publish(block, Name(published[block] = next_name++), 0);
      } else {
        const auto one = some();
        pool.Release(one->first);
        if (--one->second == 0) held.erase(one);
      }
      ASSERT_EQ(pool.num_held(), static_cast<int64_t>(held.size()));
      for (const auto& [block, count] : held) ASSERT_EQ(pool.holders(block), count);
    }
  }
}

}  // namespace
}  // namespace tandem::rollout
