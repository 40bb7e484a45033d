#include "common/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;
using testing::TempDir;

constexpr auto kInvalidFile = absl::StatusCode::kInvalidArgument;

std::string Image(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string image(reinterpret_cast<const char*>(&length), sizeof(length));
  image += header;
  for (size_t i = 0; i < data_bytes; ++i) image += static_cast<char>(i);
  return image;
}

void WriteRaw(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

absl::StatusOr<SafetensorsFile> ReadImage(const std::string& image) {
  const TempDir dir;
  WriteRaw(dir / "f.safetensors", image);
  return ReadSafetensors(dir / "f.safetensors");
}

HostTensor Tensor(const std::string& name, DType dtype, std::vector<int64_t> shape,
                  const std::string& bytes) {
  auto owner = std::make_shared<const std::string>(bytes);
  return {.spec = {name, dtype, std::move(shape)},
          .bytes = std::as_bytes(std::span(*owner)),
          .owner = owner};
}

std::string Text(const HostTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

constexpr char kTwo[] =
    R"({"__metadata__":{"k":"v"},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
    R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}})";

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const auto file = ReadImage(Image(kTwo, 6));
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ(file->tensors.size(), 2u);
  EXPECT_EQ(file->tensors[0].spec, (TensorSpec{"a", DType::kBF16, {1, 2}}));
  EXPECT_EQ(Text(file->tensors[0]), std::string("\0\1\2\3", 4));
  EXPECT_EQ(file->tensors[1].spec, (TensorSpec{"b", DType::kU8, {2}}));
  EXPECT_EQ(Text(file->tensors[1]), "\4\5");
  EXPECT_EQ(file->metadata.at("k"), "v");
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string image = Image(kTwo, 6);
  for (size_t size = 0; size < image.size(); ++size) {
    EXPECT_THAT(ReadImage(image.substr(0, size)), FailsWith(kInvalidFile, "f.safetensors: "))
        << size;
  }
}

TEST(Safetensors, RefusesBytesAfterTheData) {
  EXPECT_THAT(ReadImage(Image(kTwo, 7)), FailsWith(kInvalidFile, "hole of 1 bytes after the last"));
}

struct BadHeader {
  const char* header;
  const char* message;
};

TEST(Safetensors, RefusesBadHeadersByWhatIsWrong) {
  const std::vector<BadHeader> cases = {
      {R"([])", "does not start with '{'"},
      {R"({"a":)", "not a JSON object"},
      {R"({"a":1})", "'a' is not a JSON object"},
      {R"({"__metadata__":[]})", "__metadata__ is not a JSON object"},
      {R"({"__metadata__":{"x":1}})", "'x' is not a string"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", "has no dtype"},
      {R"({"a":{"dtype":"F8","shape":[4],"data_offsets":[0,4]}})", "'F8' is not supported"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", "needs a shape"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", "needs a shape"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", "needs a shape"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]}})",
       "needs a shape"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}})",
       "overflows 64 bits"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,4]}})",
       "overflows 64 bits"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", "needs data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[-4,0]}})", "needs data_offsets"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", "outside the file's 4 bytes"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", "outside the file's 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "takes 8 bytes"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", "hole of 2 bytes before"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "'b' overlaps"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       "overlaps"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       "'a' stands there twice"},
      {R"({"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
       "'dtype' stands there twice"},
  };
  for (const BadHeader& c : cases) {
    EXPECT_THAT(ReadImage(Image(c.header, 4)), FailsWith(kInvalidFile, c.message)) << c.header;
  }
}

TEST(Safetensors, RefusesDeepNestingBeforeParsing) {
  const std::string deep = R"({"a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THAT(ReadImage(Image(deep, 0)), FailsWith(kInvalidFile, "deeper than 8"));
}

TEST(Safetensors, RefusesAHeaderLongerThanTheFileOrTheLimit) {
  std::string image = Image(kTwo, 6);
  std::memset(image.data(), 0xFF, 8);
  EXPECT_THAT(ReadImage(image),
              FailsWith(kInvalidFile, "header claims 18446744073709551615 bytes"));
}

TEST(Safetensors, AcceptsAnEmptyTensorAndAScalar) {
  const auto file = ReadImage(Image(R"({"e":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]},)"
                                    R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                                    4));
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->tensors[0].spec.name, "e");
  EXPECT_TRUE(file->tensors[0].bytes.empty());
  EXPECT_EQ(file->tensors[1].bytes.size(), 4u);
}

TEST(Safetensors, GivesAlignedBytesWhateverTheHeaderLength) {
  for (int padding = 0; padding < 8; ++padding) {
    const auto file = ReadImage(Image(
        R"({"s":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})" + std::string(padding, ' '),
        8));
    ASSERT_THAT(file, IsOk());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file->tensors[0].bytes.data()) % 8, 0u);
    EXPECT_EQ(Text(file->tensors[0]), std::string("\0\1\2\3\4\5\6\7", 8));
  }
}

TEST(Safetensors, RefusesPicklesAndNamesTheFix) {
  EXPECT_THAT(ReadImage(std::string("PK\x03\x04\x00\x00\x08\x08\x00", 9) + "archive/data.pkl"),
              FailsWith(kInvalidFile, "save_pretrained"));
  EXPECT_THAT(ReadImage("\x80\x02}q\x01(X\x05 more"), FailsWith(kInvalidFile, "is a pickle file"));
}

TEST(Safetensors, SaysThatAFileIsMissing) {
  const TempDir dir;
  EXPECT_THAT(ReadSafetensors(dir / "none.safetensors"),
              FailsWith(absl::StatusCode::kNotFound, "none.safetensors"));
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const TempDir dir;
  const std::vector<HostTensor> tensors = {Tensor("z", DType::kU8, {3}, "abc"),
                                           Tensor("a", DType::kF32, {1, 2}, "01234567"),
                                           Tensor("empty", DType::kF32, {0, 7}, "")};
  ASSERT_THAT(WriteSafetensors(dir / "f", tensors, {{"step", "12"}}), IsOk());
  const auto file = ReadSafetensors(dir / "f");
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ(file->tensors.size(), 3u);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(file->tensors[i].spec, tensors[i].spec);
    EXPECT_EQ(Text(file->tensors[i]), Text(tensors[i]));
  }
  EXPECT_EQ(file->metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"step", "12"}}));
}

TEST(Safetensors, DoesNotWriteAFileItCouldNotRead) {
  const TempDir dir;
  const std::vector<HostTensor> short_tensor = {Tensor("a", DType::kF32, {2}, "0123")};
  EXPECT_THAT(WriteSafetensors(dir / "f", short_tensor), FailsWith(kInvalidFile, "has 4 bytes"));
  const std::vector<HostTensor> twice = {Tensor("a", DType::kU8, {1}, "0"),
                                         Tensor("a", DType::kU8, {1}, "1")};
  EXPECT_THAT(WriteSafetensors(dir / "f", twice), FailsWith(kInvalidFile, "'a' is given twice"));
  EXPECT_FALSE(std::filesystem::exists(dir / "f"));
}

// A directory with shards one.safetensors (tensor "x") and two.safetensors (tensor "y").
void WriteShards(const TempDir& dir, const std::string& weight_map) {
  ASSERT_THAT(
      WriteSafetensors(dir / "one.safetensors", std::vector{Tensor("x", DType::kU8, {1}, "x")}),
      IsOk());
  ASSERT_THAT(
      WriteSafetensors(dir / "two.safetensors", std::vector{Tensor("y", DType::kU8, {1}, "y")}),
      IsOk());
  WriteRaw(dir / "model.safetensors.index.json", R"({"weight_map":)" + weight_map + "}");
}

TEST(ModelTensorsOfADirectory, ComeFromAllShards) {
  const TempDir dir;
  WriteShards(dir, R"({"x":"one.safetensors","y":"two.safetensors"})");
  const auto tensors = ReadModelTensors(dir.path());
  ASSERT_THAT(tensors, IsOk());
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ(Text((*tensors)[0]) + Text((*tensors)[1]), "xy");
}

TEST(ModelTensorsOfADirectory, MustBeWhereTheIndexSays) {
  const TempDir dir;
  WriteShards(dir, R"({"x":"one.safetensors","y":"one.safetensors"})");
  EXPECT_THAT(ReadModelTensors(dir.path()), FailsWith(kInvalidFile, "lacks 'y'"));
}

TEST(ModelTensorsOfADirectory, AreNotReadFromOutsideIt) {
  for (const std::string shard : {"../one.safetensors", "/etc/passwd", "..", "", "a/../b"}) {
    const TempDir dir;
    WriteShards(dir, R"({"x":")" + shard + R"("})");
    EXPECT_THAT(ReadModelTensors(dir.path()), FailsWith(kInvalidFile, "outside the directory"))
        << shard;
  }
}

TEST(ModelTensorsOfADirectory, NeedAWellFormedIndex) {
  for (const char* const map : {"[]", "{", R"({"x":1})", R"({"x":"a","x":"b"})"}) {
    const TempDir dir;
    WriteShards(dir, map);
    EXPECT_THAT(ReadModelTensors(dir.path()), FailsWith(kInvalidFile, "index.json: ")) << map;
  }
}

TEST(ModelTensorsOfADirectory, MayNotStandInTwoShards) {
  const TempDir dir;
  WriteShards(dir, R"({"x":"one.safetensors","y":"two.safetensors"})");
  ASSERT_THAT(
      WriteSafetensors(dir / "two.safetensors", std::vector{Tensor("x", DType::kU8, {1}, "x"),
                                                            Tensor("y", DType::kU8, {1}, "y")}),
      IsOk());
  EXPECT_THAT(ReadModelTensors(dir.path()), FailsWith(kInvalidFile, "'x' is in another shard"));
}

TEST(ModelTensorsOfADirectory, AreNamedWhenMissing) {
  const TempDir dir;
  EXPECT_THAT(ReadModelTensors(dir.path()),
              FailsWith(absl::StatusCode::kNotFound, "neither model.safetensors nor"));
  WriteRaw(dir / "pytorch_model.bin", "PK");
  EXPECT_THAT(ReadModelTensors(dir.path()),
              FailsWith(absl::StatusCode::kNotFound, "convert it with"));
}

}  // namespace
}  // namespace tandem
