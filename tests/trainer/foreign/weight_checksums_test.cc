#include "trainer/foreign/weight_checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// SHA-256 of "abc" (FIPS 180-2, appendix B.1).
constexpr char kOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

std::set<std::string> ProvenOf(const std::map<std::string, std::string>& checksums,
                               const std::map<std::string, std::string>& tensors) {
  return CompareChecksums(checksums, [&](const std::string& name) -> const std::string* {
    const auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : &found->second;
  });
}

TEST(WeightChecksums, AParameterOfTheSameNameAndBytesIsProven) {
  EXPECT_THAT(ProvenOf({{"dp0:pp0:pcp0:tp0:norm.weight", kOfAbc}}, {{"norm.weight", "abc"}}),
              ElementsAre("dp0:pp0:pcp0:tp0:norm.weight"));
  EXPECT_THAT(ProvenOf({{"norm.weight", kOfAbc}}, {{"norm.weight", "abc"}}),
              ElementsAre("norm.weight"));
  EXPECT_THAT(ProvenOf({{"norm.weight", kOfAbc}}, {{"norm.weight", "abd"}}), IsEmpty());
  EXPECT_THAT(ProvenOf({{"other.weight", kOfAbc}}, {{"norm.weight", "abc"}}), IsEmpty());
}

TEST(WeightChecksums, AJoinedParameterIsProvenByItsPartsInOrder) {
  EXPECT_THAT(
      ProvenOf({{"l.qkv_proj.weight", kOfAbc}},
               {{"l.q_proj.weight", "a"}, {"l.k_proj.weight", "b"}, {"l.v_proj.weight", "c"}}),
      ElementsAre("l.qkv_proj.weight"));
  EXPECT_THAT(ProvenOf({{"l.gate_up_proj.bias", kOfAbc}},
                       {{"l.gate_proj.bias", "a"}, {"l.up_proj.bias", "bc"}}),
              ElementsAre("l.gate_up_proj.bias"));
  EXPECT_THAT(ProvenOf({{"l.gate_up_proj.bias", kOfAbc}},
                       {{"l.gate_proj.bias", "bc"}, {"l.up_proj.bias", "a"}}),
              IsEmpty());
  EXPECT_THAT(ProvenOf({{"l.qkv_proj.weight", kOfAbc}}, {{"l.q_proj.weight", "abc"}}), IsEmpty());
}

}  // namespace
}  // namespace tandem::trainer
