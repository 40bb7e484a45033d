#include "trainer/foreign/weights_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using absl::StatusCode::kDataLoss;
using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kOutOfRange;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::UnorderedElementsAre;

constexpr float kValues[] = {1, 2, 3};

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

class WeightsDirectoryTest : public ::testing::Test {
 protected:
  WeightsDirectoryTest() {
    std::filesystem::create_directories(directory_ / "model");
    EXPECT_THAT(WriteFileAtomically(directory_ / "model/config.json", "{}"), IsOk());
    EXPECT_THAT(WriteFileAtomically(directory_ / "model/model.safetensors", "start"), IsOk());
  }

  void StageWhole(int64_t version) {
    weights_.Stage(version, {{"a", DType::kF32, {3}}});
    EXPECT_THAT(weights_.Receive(version, 0, 4, std::as_bytes(std::span(kValues).subspan(1))),
                IsOk());
    EXPECT_THAT(weights_.Receive(version, 0, 0, std::as_bytes(std::span(kValues).first(1))),
                IsOk());
  }

  TempDir directory_;
  WeightsDirectory weights_{directory_ / "model", directory_ / "weights"};
  const DigestMap digests_ = {{"a", Digest128(std::as_bytes(std::span(kValues)))}};
};

TEST_F(WeightsDirectoryTest, AVersionIsTheModelsDirectoryWithOtherWeights) {
  StageWhole(4);
  DigestMap written;
  const auto path = weights_.Write(digests_, &written);
  ASSERT_THAT(path, IsOk());
  EXPECT_EQ(*path, directory_ / "weights/version_4");
  EXPECT_THAT(NamesIn(*path), UnorderedElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(written, digests_);
  const auto tensors = ReadModelTensors(*path);
  ASSERT_THAT(tensors, IsOk());
  EXPECT_EQ((*tensors)[0].spec.ToString(), "a F32 [3]");
}

TEST_F(WeightsDirectoryTest, TheLastTwoVersionsStay) {
  DigestMap written;
  for (int64_t version = 8; version < 12; ++version) {
    StageWhole(version);
    ASSERT_THAT(weights_.Write(digests_, &written), IsOk());
  }
  EXPECT_THAT(NamesIn(directory_ / "weights"), UnorderedElementsAre("version_10", "version_11"));
}

TEST_F(WeightsDirectoryTest, NothingIsWrittenWhileBytesAreMissing) {
  weights_.Stage(1, {{"a", DType::kF32, {3}}});
  ASSERT_THAT(weights_.Receive(1, 0, 0, std::as_bytes(std::span(kValues).first(2))), IsOk());
  DigestMap written;
  EXPECT_THAT(weights_.Write(digests_, &written), FailsWith(kDataLoss, "8 of 12 bytes of a"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "weights"));
}

TEST_F(WeightsDirectoryTest, AFileThatDoesNotHoldWhatWasPublishedIsAnError) {
  StageWhole(1);
  DigestMap written;
  EXPECT_THAT(weights_.Write({{"a", "0"}}, &written), FailsWith(kDataLoss, "does not hold a"));
  StageWhole(1);
  EXPECT_THAT(weights_.Write({{"b", digests_.at("a")}}, &written),
              FailsWith(kDataLoss, "does not hold b"));
}

TEST_F(WeightsDirectoryTest, BytesOfAnotherVersionOrPastTheTensorAreRefused) {
  const auto bytes = std::as_bytes(std::span(kValues));
  EXPECT_THAT(weights_.Receive(0, 0, 0, bytes), FailsWith(kFailedPrecondition, "version 0"));
  weights_.Stage(0, {{"a", DType::kF32, {3}}});
  EXPECT_THAT(weights_.Receive(1, 0, 0, bytes), FailsWith(kFailedPrecondition, "version 1"));
  EXPECT_THAT(weights_.Receive(0, 0, 4, bytes), FailsWith(kOutOfRange, "bytes 4 to 16 of 12 of a"));
  EXPECT_THAT(weights_.Receive(0, 1, 0, bytes), FailsWith(kOutOfRange, "tensor 1 of 1"));
  weights_.Drop();
  EXPECT_THAT(weights_.Receive(0, 0, 0, bytes), FailsWith(kFailedPrecondition, "version 0"));
}

}  // namespace
}  // namespace tandem::trainer
