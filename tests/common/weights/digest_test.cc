#include "common/weights/digest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The empty digest is published with XXH3; the others are from the Python package xxhash.
TEST(Digest, IsTheCanonicalXxh3Of128Bits) {
  EXPECT_EQ(Digest128({}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(Digest128(Bytes("tandem")), "40f4a999f5b887cdbf9c97ebdc3d178d");
  EXPECT_EQ(Digest128(Bytes(std::string(1000, 'a'))), "b01da365eddaa29cb3e7af627147db7c");
}

TEST(Digest, OfAFileIsThatOfItsBytes) {
  const testing::TempDir directory;
  const std::string path = directory.path() + "/file";
  const std::string text(2'500'000, 'a');  // two blocks and a half
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  EXPECT_EQ(DigestFile(path).value(), Digest128(Bytes(text)));
  ASSERT_TRUE(WriteFileAtomically(path, "").ok());
  EXPECT_EQ(DigestFile(path).value(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(DigestFile(path + ".none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(DigestFile(directory.path()).ok());  // a directory
}

TEST(Digest, IsGivenPerTensorName) {
  const std::vector<HostTensor> tensors = {
      {.spec = {"b", DType::kU8, {6}}, .bytes = Bytes("tandem"), .owner = nullptr},
      {.spec = {"a", DType::kU8, {0}}, .bytes = {}, .owner = nullptr}};
  const DigestMap digests = DigestTensors(tensors);
  ASSERT_EQ(digests.size(), 2u);
  EXPECT_EQ(digests.at("a"), Digest128({}));
  EXPECT_EQ(digests.at("b"), Digest128(Bytes("tandem")));
}

TEST(Digest, OfASetIsTheDigestOfItsLinesInNameOrder) {
  EXPECT_EQ(CombinedDigest({{"b", "22"}, {"a", "11"}}), Digest128(Bytes("a:11\nb:22\n")));
  EXPECT_NE(CombinedDigest({{"a", "11"}}), CombinedDigest({{"b", "11"}}));
}

TEST(Digest, OfTokenIdsIsXxh3OfLittleEndianInt32) {
  EXPECT_EQ(HashTokenIds({}), 0x2d06800538d394c2u);  // XXH3-64 of nothing
  EXPECT_EQ(HashTokenIds(std::vector<int32_t>{1, 2, -1}), 0x747ab7c2f160419fu);
  EXPECT_NE(HashTokenIds(std::vector<int32_t>{1, 2}), HashTokenIds(std::vector<int32_t>{2, 1}));
}

}  // namespace
}  // namespace tandem
