#include "common/model/token_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

PackedSupport Pack(const std::vector<int32_t>& ids) { return PackedSupport(ids); }

std::vector<int32_t> Unpacked(const PackedSupport& packed, int64_t vocabulary) {
  std::vector<int32_t> ids;
  EXPECT_THAT(UnpackSupport(packed.bytes(), vocabulary, &ids), IsOk());
  return ids;
}

TEST(TokenSupportTest, FewScatteredIdsAreGapsFromOneToTheNext) {
  // 0 from -1, then 4 are skipped, then 194: 0xc2 0x01 as a varint.
  EXPECT_EQ(Pack({0, 5, 200}).bytes(), Bytes({1, 3, 0, 4, 0xc2, 0x01}));
}

TEST(TokenSupportTest, ConsecutiveIdsAreRuns) {
  std::vector<int32_t> ids(100);
  std::iota(ids.begin(), ids.end(), 10);  // 10 .. 109
  ids.push_back(500);                     // 390 are skipped: 0x86 0x03
  EXPECT_EQ(Pack(ids).bytes(), Bytes({2, 101, 10, 99, 0x86, 0x03, 0}));
}

TEST(TokenSupportTest, ManyScatteredIdsAreABitmapFromTheFirst) {
  // Every other id from 3 to 33: bits 0, 2, 4, 6 of four bytes.
  std::vector<int32_t> ids;
  for (int32_t id = 3; id <= 33; id += 2) ids.push_back(id);
  EXPECT_EQ(Pack(ids).bytes(), Bytes({3, 16, 3, 0x55, 0x55, 0x55, 0x55}));
}

TEST(TokenSupportTest, NothingLeftOutIsNoBytes) {
  EXPECT_TRUE(Pack({}).empty());
  EXPECT_EQ(Pack({}).num_ids(), 0);
  EXPECT_THAT(Unpacked(PackedSupport(), 10), IsEmpty());
}

TEST(TokenSupportTest, EverySetComesBackExactlyInAtMostAnEighthOfTheVocabularyAndAFewBytes) {
  std::mt19937 random(1);
  for (const int32_t vocabulary : {2, 9, 1000, 151936}) {
    for (const double share : {1e-4, 0.01, 0.1, 0.5, 0.9, 0.999, 1.0}) {
      std::vector<int32_t> ids;
      std::bernoulli_distribution kept(share);
      for (int32_t id = 0; id < vocabulary; ++id) {
        if (kept(random)) ids.push_back(id);
      }
      const PackedSupport packed(ids);
      EXPECT_EQ(Unpacked(packed, vocabulary), ids) << vocabulary << " x " << share;
      EXPECT_EQ(packed.ids(), ids);
      EXPECT_EQ(packed.num_ids(), static_cast<int64_t>(ids.size()));
      EXPECT_LE(packed.bytes().size(), static_cast<size_t>(vocabulary) / 8 + 8);
    }
  }
}

TEST(TokenSupportTest, AViewGivesTheIdsOfEitherForm) {
  const std::vector<int32_t> ids = {2, 7};
  const PackedSupport packed(ids);
  std::vector<int32_t> seen;
  SupportView(ids).AppendTo(&seen);
  SupportView(packed).AppendTo(&seen);
  SupportView::OfBytes(packed.bytes()).AppendTo(&seen);
  SupportView().AppendTo(&seen);
  EXPECT_THAT(seen, ElementsAre(2, 7, 2, 7, 2, 7));
  EXPECT_TRUE(SupportView().empty());
  EXPECT_FALSE(SupportView(packed).empty());
}

TEST(TokenSupportTest, BytesThatWereChangedAreRefused) {
  std::vector<int32_t> ids;
  const auto refuses = [&](const std::string& bytes, const char* why) {
    EXPECT_THAT(UnpackSupport(bytes, 100, &ids),
                FailsWith(absl::StatusCode::kInvalidArgument, why));
  };
  refuses(Bytes({1}), "cut off");
  refuses(Bytes({9, 1, 0}), "no known coding");
  refuses(Bytes({1, 2, 0}), "ids it announces");      // one of two
  refuses(Bytes({1, 1, 0, 0}), "ids it announces");   // two of one
  refuses(Bytes({1, 1, 100}), "ids it announces");    // id 100 of 100
  refuses(Bytes({2, 3, 0, 50}), "ids it announces");  // a run of 51 in three
  refuses(Bytes({3, 2, 0, 1}), "ids it announces");   // a bitmap of one in two
  refuses(Bytes({3, 1, 97, 8}), "ids it announces");  // bit 3: id 100
  refuses(Bytes({1, 101, 0}), "more ids than the vocabulary");
  refuses(Bytes({1, 0}), "more ids than the vocabulary");
}

}  // namespace
}  // namespace tandem
