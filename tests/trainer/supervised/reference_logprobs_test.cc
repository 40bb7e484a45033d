#include "trainer/supervised/reference_logprobs.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/supervised/toy_examples.h"
#include "trainer/supervised/objectives/preference_objective.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::ToyPairs;

const ReferenceIdentity kIdentity = {"weights", "tokenizer", "sequences", "fp32", "fast"};
const std::vector<float> kLogprobs = {-0.1f, -2.5f, -3e-30f};

TEST(ReferenceCache, IsReadBackBitForBitWhereEverythingFits) {
  const TempDir directory;
  const std::string path = directory.path() + "/cache.safetensors";
  ASSERT_THAT(WriteReferenceCache(path, kIdentity, kLogprobs), IsOk());
  const auto read = ReadReferenceCache(path, kIdentity, 3);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(*read, kLogprobs);
}

TEST(ReferenceCache, IsRefusedWhereAnythingThatMadeItIsAnother) {
  const TempDir directory;
  const std::string path = directory.path() + "/cache.safetensors";
  ASSERT_THAT(WriteReferenceCache(path, kIdentity, kLogprobs), IsOk());
  for (std::string ReferenceIdentity::*const field :
       {&ReferenceIdentity::weights_digest, &ReferenceIdentity::tokenizer_hash,
        &ReferenceIdentity::sequences_digest, &ReferenceIdentity::dtype,
        &ReferenceIdentity::numerics}) {
    ReferenceIdentity other = kIdentity;
    other.*field = "another";
    EXPECT_THAT(ReadReferenceCache(path, other, 3),
                FailsWith(absl::StatusCode::kFailedPrecondition, "now another"));
  }
  EXPECT_THAT(ReadReferenceCache(path, kIdentity, 4),
              FailsWith(absl::StatusCode::kDataLoss, "reference_logprobs F32 [4]"));
  EXPECT_THAT(ReadReferenceCache(path + "2", kIdentity, 3),
              FailsWith(absl::StatusCode::kNotFound, "cache.safetensors2"));
}

TEST(SequencesDigest, KnowsWhereAPromptEndsAndTheOrderOfExamples) {
  const auto digest = [](std::vector<PreferencePair> pairs) {
    return SequencesDigest(static_cast<int64_t>(pairs.size()),
                           [&](int64_t i) { return TokensOf(pairs[static_cast<size_t>(i)]); });
  };
  const std::vector<PreferencePair> pairs = ToyPairs(3);
  EXPECT_EQ(digest(pairs), digest(pairs));
  std::vector<PreferencePair> swapped = pairs;
  std::swap(swapped[0], swapped[1]);
  EXPECT_NE(digest(pairs), digest(swapped));
  const std::vector<PreferencePair> split_here = {
      {.prompt = {1, 2}, .chosen = {3}, .rejected = {4}}};
  const std::vector<PreferencePair> split_there = {
      {.prompt = {1}, .chosen = {2, 3}, .rejected = {4}}};
  EXPECT_NE(digest(split_here), digest(split_there));
  EXPECT_EQ(
      NumCompletionTokens(3, [&](int64_t i) { return TokensOf(pairs[static_cast<size_t>(i)]); }),
      1 + 3 + 2 + 4 + 3 + 5);
}

}  // namespace
}  // namespace tandem::trainer
