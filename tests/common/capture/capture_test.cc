#include "common/capture/capture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_replace.h"
#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::offpolicy {
namespace {

using testing::FailsWith;
using testing::IsOk;
using testing::TempDir;

// Two groups: prompts of 2 and 1 tokens; completions of 2, 1 (masked) and 3 tokens.
Capture SmallCapture() {
  Capture c;
  c.manifest = {.created_at = "2026-01-02T03:04:05Z",
                .source = "run",
                .tandem_version = "0.1.0",
                .run_id = "demo-7",
                .step = 12,
                .proximal_version = 12,
                .model_path = "models/small",
                .model_type = "llama",
                .tokenizer_hash = "aa",
                .model_config_digest = "bb",
                .sampling = {.temperature = 0.9f, .top_k = 3, .max_new_tokens = 8},
                .servers = {{"127.0.0.1:1", "0.1.0", "bf16", "fast", "avx512", "keep"}},
                .trainer = {"fp32", "fast", "avx512", "libtorch 2.11.0", 2048},
                .weights = {{12, "dither", {{"model.norm.weight", "cc"}}, "../weights/v12", "dd"}},
                .injected = {"temperature 0.9"}};
  c.group_id = {40, 41};
  c.prompt_ids = {1, 2, 3};
  c.prompt_offsets = {0, 2, 3};
  c.group = {0, 0, 1};
  c.completion_index = {0, 1, 0};
  c.token_offsets = {0, 2, 3, 6};
  c.reward = {1, 0, 0.5};
  c.masked = {0, 1, 0};
  c.finish = {1, 2, 1};
  c.token_hash = {-5, 6, 7};
  c.seed = {1, 1, 2};
  c.token_ids = {10, 11, 12, 13, 14, 15};
  c.behaviour_logprobs = {-1, -2, -3, -4, -5, -6};
  c.raw_logprobs = {-1.5f, -2, -3, -4, -5, -6};
  c.proximal_logprobs = {-1, -2.5f, -3, -4, std::numeric_limits<float>::quiet_NaN(), -6};
  c.entropies = {1, 1, 1, 1, 1, 1};
  c.logprob_second_moments = {2, 2, 2, 2, 2, 2};
  c.kept_mass = {1, 1, 0.5f, 1, 1, 1};
  c.advantages = {1, 1, -1, 0, 0, 0};
  c.weight_version = {11, 12, 12, 10, 12, 12};
  c.decode_batch_size = {3, 3, 2, 2, 1, 1};
  c.prefix_cached = {0, 0, 1, 0, 0, 0};
  c.packed_support = {1, 2, 12,
                      0};  // of token 2: as gaps, 2 ids, 12 after -1 and 0 skipped, then 0
  c.packed_support_offsets = {0, 0, 0, 4, 4, 4, 4};
  return c;
}

std::vector<int32_t> IdsOf(const SupportView& support) {
  std::vector<int32_t> ids;
  support.AppendTo(&ids);
  return ids;
}

// The number of bytes of a capture's columns: the file without its header, which begins with its
// own length.
int64_t ColumnBytes(const std::string& path) {
  const std::string file = *ReadFile(path + "/tensors.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  return static_cast<int64_t>(file.size() - sizeof(header) - header);
}

std::string DigestOf(const std::string& path) {
  const std::string file = *ReadFile(path);
  return Digest128(std::as_bytes(std::span(file)));
}

// Turns the capture at `path` into one of format 1, with `ids` as the supports, which end at
// `offsets`.
void ChangeToFormat1(const std::string& path, const std::vector<int32_t>& ids,
                     const std::vector<int64_t>& offsets) {
  const std::string columns = path + "/tensors.safetensors", manifest = path + "/manifest.json";
  const std::string was = DigestOf(columns);
  SafetensorsFile file = *ReadSafetensors(columns);
  std::erase_if(file.tensors, [](const HostTensor& tensor) {
    return tensor.spec.name.starts_with("packed_support");
  });
  file.tensors.push_back({{"support_ids", DType::kI32, {static_cast<int64_t>(ids.size())}},
                          std::as_bytes(std::span(ids)),
                          nullptr});
  file.tensors.push_back({{"support_offsets", DType::kI64, {static_cast<int64_t>(offsets.size())}},
                          std::as_bytes(std::span(offsets)),
                          nullptr});
  ASSERT_THAT(WriteSafetensors(columns, file.tensors), IsOk());
  const std::string now = DigestOf(columns);
  ASSERT_THAT(WriteFileAtomically(
                  manifest, absl::StrReplaceAll(
                                *ReadFile(manifest),
                                {{"\"format_version\": 2", "\"format_version\": 1"}, {was, now}})),
              IsOk());
}

TEST(CaptureTest, ComesBackAsItWasWritten) {
  const TempDir dir;
  const Capture wrote = SmallCapture();
  ASSERT_THAT(WriteCapture(dir.path() + "/step_12", wrote), IsOk());
  const auto read = ReadCapture(dir.path() + "/step_12");
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->token_ids, wrote.token_ids);
  EXPECT_EQ(read->token_hash, wrote.token_hash);
  EXPECT_EQ(IdsOf(read->support(2)), (std::vector<int32_t>{12, 13}));
  EXPECT_TRUE(read->support(1).empty() && read->support(5).empty());
  EXPECT_EQ(read->reward, wrote.reward);
  EXPECT_TRUE(std::isnan(read->proximal_logprobs[4]));
  EXPECT_EQ(read->behaviour_logprobs, wrote.behaviour_logprobs);
  EXPECT_EQ(read->manifest.sampling.temperature, 0.9f) << "nine digits give a float32 back";
  EXPECT_EQ(read->manifest.servers[0].instruction_set, "avx512");
  EXPECT_EQ(read->manifest.trainer.row_tokens, 2048);
  EXPECT_EQ(read->manifest.weights[0].served, wrote.manifest.weights[0].served);
  EXPECT_EQ(read->manifest.injected, wrote.manifest.injected);
  EXPECT_EQ(read->WeightsOf(12)->masters, "../weights/v12");
  EXPECT_EQ(read->WeightsOf(11), nullptr);
  EXPECT_EQ(std::vector<int32_t>(read->prompt(1).begin(), read->prompt(1).end()),
            std::vector<int32_t>{3});
}

TEST(CaptureTest, TurnsAreAColumnOfAnotherFormat) {
  const TempDir dir;
  Capture wrote = SmallCapture();
  const auto manifest = [&] { return *ReadFile(dir / "c/manifest.json"); };
  ASSERT_THAT(WriteCapture(dir / "c", wrote), IsOk());
  EXPECT_NE(manifest().find("\"format_version\": 2"), std::string::npos) << "of one turn";
  wrote.turn = {1, 1, 1, 1, 0, 2};
  ASSERT_THAT(WriteCapture(dir / "c", wrote), IsOk());
  EXPECT_NE(manifest().find("\"format_version\": 4"), std::string::npos);
  const auto read = ReadCapture(dir / "c");
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->turn, wrote.turn);
  const CaptureRecord record = MakeCaptureRecord(*read);
  EXPECT_EQ(record.mask, (std::vector<uint8_t>{1, 1, 0, 1, 0, 1}));
  EXPECT_EQ(record.length, (std::vector<int32_t>{2, 1, 2}));
  EXPECT_EQ(record.position, (std::vector<int32_t>{0, 1, 0, 0, 1, 1}));
  for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{1, 1, 1, 1, 0},
                                            {1, 1, 1, 0, 1, 1},
                                            {1, 1, 1, 1, 0, 0},
                                            {1, 1, 1, 1, 0, 3},
                                            {1, 1, 1, 1, 2, 2},
                                            {1, 1, 1, 2, 0, 3}}) {
    wrote.turn = wrong;
    EXPECT_THAT(WriteCapture(dir / "c", wrote),
                FailsWith(absl::StatusCode::kInvalidArgument, "column turn"));
  }
}

// Token 1 could be any of the ids 0 to 99 999, token 4 every other one of them. As plain ids they
// would take 4 bytes each, 600 000 bytes in all. Packed, the first is one run: a byte for the
// coding, 3 for the count of 100 000, 1 for the distance, 3 for the length less one. The second is
// a bitmap: a byte for the coding, 3 for the count of 50 000, 1 for the first id, and a bit for
// each of 0 to 99 998, 12 500 bytes.
TEST(CaptureTest, SupportsTakeOnDiskWhatTheyTakeOnTheWire) {
  const TempDir dir;
  Capture capture = SmallCapture();
  std::vector<int32_t> all(100000), every_other(50000);
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = 0; i < every_other.size(); ++i) every_other[i] = static_cast<int32_t>(2 * i);
  const std::string bytes = PackedSupport(all).bytes() + PackedSupport(every_other).bytes();
  capture.packed_support.assign(bytes.begin(), bytes.end());
  capture.packed_support_offsets = {0, 0, 8, 8, 8, 8 + 12505, 8 + 12505};
  ASSERT_THAT(WriteCapture(dir / "c", capture), IsOk());
  // Per group 8 + 8, and 8 once; per prompt token 4; per completion 4 + 4 + 8 + 8 + 1 + 1 + 8 + 8,
  // and 8 once; per token 4 + 7 floats + 8 + 4 + 1 + 8, and 8 once. Two groups, 3 prompt tokens, 3
  // completions, 6 tokens: 40 + 12 + 134 + 326 = 512.
  EXPECT_EQ(ColumnBytes(dir / "c"), 512 + 8 + 12505);
  const auto read = ReadCapture(dir / "c");
  ASSERT_THAT(read, IsOk());
  EXPECT_TRUE(IdsOf(read->support(1)) == all);
  EXPECT_TRUE(IdsOf(read->support(4)) == every_other);
  ASSERT_NO_FATAL_FAILURE(
      ChangeToFormat1(dir / "c", all, {0, 0, 100000, 100000, 100000, 100000, 100000}));
  EXPECT_EQ(ColumnBytes(dir / "c"), 512 + 4 * 100000) << "as format 1 has the first alone";
}

TEST(CaptureTest, OneOfFormat1ComesBackWithItsSupports) {
  const TempDir dir;
  ASSERT_THAT(WriteCapture(dir / "c", SmallCapture()), IsOk());
  ASSERT_NO_FATAL_FAILURE(ChangeToFormat1(dir / "c", {12, 13, 2, 9, 400}, {0, 0, 0, 2, 2, 5, 5}));
  const auto read = ReadCapture(dir / "c");
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->token_ids, SmallCapture().token_ids);
  EXPECT_TRUE(read->support(1).empty());
  EXPECT_EQ(IdsOf(read->support(2)), (std::vector<int32_t>{12, 13}));
  EXPECT_TRUE(read->support(3).empty());
  EXPECT_EQ(IdsOf(read->support(4)), (std::vector<int32_t>{2, 9, 400}));
  EXPECT_TRUE(read->support(5).empty());
}

TEST(CaptureTest, SupportsThatAreNoIdsAreRefusedInBothFormats) {
  const TempDir dir;
  Capture capture = SmallCapture();
  capture.packed_support[1] = 3;  // announces three ids but has two
  EXPECT_THAT(WriteCapture(dir / "c", capture),
              FailsWith(absl::StatusCode::kInvalidArgument, "packed_support of token 2"));
  ASSERT_THAT(WriteCapture(dir / "c", SmallCapture()), IsOk());
  ASSERT_NO_FATAL_FAILURE(ChangeToFormat1(dir / "c", {13, 12}, {0, 0, 0, 2, 2, 2, 2}));
  EXPECT_THAT(ReadCapture(dir / "c"),
              FailsWith(absl::StatusCode::kInvalidArgument, "those of token 2 are not rising ids"));
  ASSERT_THAT(WriteCapture(dir / "c", SmallCapture()), IsOk());
  ASSERT_NO_FATAL_FAILURE(ChangeToFormat1(dir / "c", {12, 13}, {0, 0, 0, 3, 3, 3, 3}));
  EXPECT_THAT(ReadCapture(dir / "c"),
              FailsWith(absl::StatusCode::kInvalidArgument, "support_offsets does not rise"));
}

TEST(CaptureTest, IsARecordWithoutItsMaskedCompletions) {
  const Capture capture = SmallCapture();
  const CaptureRecord columns = MakeCaptureRecord(capture);
  const TokenRecord record = RecordOf(capture, columns);
  EXPECT_EQ(columns.sequence, (std::vector<int32_t>{0, 0, 1, 2, 2, 2}));
  EXPECT_EQ(columns.position, (std::vector<int32_t>{0, 1, 0, 0, 1, 2}));
  EXPECT_EQ(columns.version_lag, (std::vector<int32_t>{1, 0, 0, 2, 0, 0}));
  EXPECT_EQ(columns.mask, (std::vector<uint8_t>{1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(columns.length, (std::vector<int32_t>{2, 1, 3}));
  EXPECT_DOUBLE_EQ(record.Delta(1), -0.5);
}

TEST(CaptureTest, RefusesColumnsThatDoNotFit) {
  const TempDir dir;
  Capture capture = SmallCapture();
  capture.entropies.pop_back();
  EXPECT_THAT(
      WriteCapture(dir.path() + "/c", capture),
      FailsWith(absl::StatusCode::kInvalidArgument, "column entropies has 5 entries for 6"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() + "/c"));
  capture = SmallCapture();
  capture.token_offsets = {0, 3, 3, 6};
  EXPECT_THAT(CheckCapture(capture), FailsWith(absl::StatusCode::kInvalidArgument,
                                               "token_offsets does not rise from 0 to 6"));
  capture = SmallCapture();
  capture.group = {0, 1, 0};
  EXPECT_THAT(CheckCapture(capture),
              FailsWith(absl::StatusCode::kInvalidArgument, "groups must come in order"));
}

TEST(CaptureTest, ATruncatedFileIsDataLoss) {
  const TempDir dir;
  const std::string path = dir.path() + "/c";
  ASSERT_THAT(WriteCapture(path, SmallCapture()), IsOk());
  const std::string columns = path + "/tensors.safetensors";
  std::filesystem::resize_file(columns, std::filesystem::file_size(columns) - 4);
  EXPECT_THAT(ReadCapture(path), FailsWith(absl::StatusCode::kDataLoss, "cut short or changed"));
  std::filesystem::remove(columns);
  EXPECT_THAT(ReadCapture(path), FailsWith(absl::StatusCode::kDataLoss, "tensors.safetensors"));
}

TEST(CaptureTest, AForeignVersionNamesTheProgramThatWroteIt) {
  const TempDir dir;
  const std::string path = dir.path() + "/c", manifest = path + "/manifest.json";
  ASSERT_THAT(WriteCapture(path, SmallCapture()), IsOk());
  std::string text = *ReadFile(manifest);
  text.replace(text.find("\"format_version\": 2"), 19, "\"format_version\": 9");
  std::ofstream(manifest) << text;
  EXPECT_THAT(ReadCapture(path), FailsWith(absl::StatusCode::kInvalidArgument,
                                           "format_version 9, this program reads 1, 2 and 4"));
  std::ofstream(manifest) << "{\"format\": \"another\"}";
  EXPECT_THAT(ReadCapture(path), FailsWith(absl::StatusCode::kInvalidArgument, "not the manifest"));
  std::ofstream(manifest) << "{\"format\": \"tandem-capture\", \"format_version\": 1}";
  EXPECT_THAT(ReadCapture(path), FailsWith(absl::StatusCode::kInvalidArgument, "created_at"));
}

TEST(CaptureTest, OneWhoseWritingDidNotEndIsSaidSo) {
  const TempDir dir;
  const std::string path = dir.path() + "/c";
  ASSERT_THAT(WriteCapture(path, SmallCapture()), IsOk());
  std::filesystem::remove(path + "/manifest.json");
  EXPECT_THAT(ReadCapture(path), FailsWith(absl::StatusCode::kNotFound, "did not end"));
  EXPECT_THAT(ReadCapture(dir.path() + "/none"),
              FailsWith(absl::StatusCode::kNotFound, "no such capture"));
}

TEST(CaptureTest, AFullDiskLeavesTheOneBeforeInPlace) {
  const TempDir dir;
  const std::string path = dir.path() + "/c";
  Capture capture = SmallCapture();
  ASSERT_THAT(WriteCapture(path, capture), IsOk());
  capture.manifest.step = 13;
  ASSERT_EQ(setenv("TANDEM_FAIL_WRITE", "manifest.json:ENOSPC:10", 1), 0);
  EXPECT_THAT(WriteCapture(path, capture),
              FailsWith(absl::StatusCode::kResourceExhausted, "manifest"));
  ASSERT_EQ(unsetenv("TANDEM_FAIL_WRITE"), 0);
  EXPECT_EQ(ReadCapture(path)->manifest.step, 12);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(CaptureTest, MayHaveARewardOfEachTokenAndIsWholeWithoutIt) {
  const TempDir directory;
  Capture capture = SmallCapture();
  const auto back = [&] {
    EXPECT_THAT(WriteCapture(directory / "c", capture), IsOk());
    return ReadCapture(directory / "c").value().token_rewards;
  };
  EXPECT_TRUE(back().empty());
  capture.token_rewards = {0.25, 0.75, 0, 0, 0.5, 0};
  EXPECT_EQ(back(), capture.token_rewards);
  capture.token_rewards.pop_back();
  EXPECT_THAT(CheckCapture(capture),
              FailsWith(absl::StatusCode::kInvalidArgument, "token_rewards"));
}

}  // namespace
}  // namespace tandem::offpolicy
