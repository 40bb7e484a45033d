#include "common/hub/hub_settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::hub {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

HubSettings Read(const std::map<std::string, std::string>& variables) {
  return ReadHubSettings([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// The order of huggingface_hub's constants.py.
TEST(HubSettingsTest, FindsTheCacheWhereHuggingfaceHubDoes) {
  std::map<std::string, std::string> variables = {{"HOME", "/home/a"}};
  EXPECT_EQ(Read(variables).cache, "/home/a/.cache/huggingface/hub");
  variables["XDG_CACHE_HOME"] = "/xdg";
  EXPECT_EQ(Read(variables).cache, "/xdg/huggingface/hub");
  variables["HF_HOME"] = "/hf";
  EXPECT_EQ(Read(variables).cache, "/hf/hub");
  variables["HUGGINGFACE_HUB_CACHE"] = "/legacy";
  EXPECT_EQ(Read(variables).cache, "/legacy");
  variables["HF_HUB_CACHE"] = "/cache";
  EXPECT_EQ(Read(variables).cache, "/cache");
}

TEST(HubSettingsTest, ExpandsHomeAndVariables) {
  EXPECT_EQ(Read({{"HOME", "/home/a"}, {"HF_HOME", "~/hf"}}).cache, "/home/a/hf/hub");
  EXPECT_EQ(Read({{"SCRATCH", "/s"}, {"HF_HUB_CACHE", "$SCRATCH/x/${SCRATCH}y"}}).cache,
            "/s/x//sy");
  EXPECT_EQ(Read({{"HF_HUB_CACHE", "/x/$NONE/${NONE}/$"}}).cache, "/x/$NONE/${NONE}/$");
}

TEST(HubSettingsTest, ReadsTheEndpointWithoutSlashesAtItsEnd) {
  EXPECT_EQ(Read({}).endpoint, "https://huggingface.co");
  EXPECT_EQ(Read({{"HF_ENDPOINT", "https://mirror.example/hf//"}}).endpoint,
            "https://mirror.example/hf");
}

TEST(HubSettingsTest, TakesTheTokenOfTheEnvironmentBeforeThatOfTheFile) {
  const TempDir dir;
  ASSERT_THAT(WriteFileAtomically(dir / "token", "hf_file\n"), IsOk());
  std::map<std::string, std::string> variables = {{"HF_HOME", dir.path()}};
  EXPECT_EQ(Read(variables).token, "hf_file");
  EXPECT_EQ(Read(variables).token_origin, "of the file " + dir.path() + "/token");
  variables["HF_TOKEN"] = " hf_environment\n";
  EXPECT_EQ(Read(variables).token, "hf_environment");
  variables["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "yes";
  EXPECT_EQ(Read(variables).token, "");
  EXPECT_EQ(Read({{"HF_HOME", dir / "nothing"}}).token_origin,
            "none was sent: HF_TOKEN is not set and " + dir.path() + "/nothing/token is not there");
}

TEST(HubSettingsTest, KeepsTheTokenFromPlaintextToAnotherMachine) {
  EXPECT_EQ(Read({{"HF_TOKEN", "t"}, {"HF_ENDPOINT", "http://hub.internal:8080"}}).token, "");
  EXPECT_EQ(Read({{"HF_TOKEN", "t"}, {"HF_ENDPOINT", "http://127.0.0.1:8080"}}).token, "t");
  EXPECT_EQ(Read({{"HF_TOKEN", "t"}, {"HF_ENDPOINT", "https://hub.internal"}}).token, "t");
}

TEST(HubSettingsTest, ReadsSwitchesAsHuggingfaceHubDoes) {
  EXPECT_TRUE(Read({{"HF_HUB_OFFLINE", "1"}}).offline);
  EXPECT_TRUE(Read({{"TRANSFORMERS_OFFLINE", "true"}}).offline);
  EXPECT_FALSE(Read({{"HF_HUB_OFFLINE", "0"}}).offline);
  EXPECT_FALSE(Read({{"HF_HUB_DISABLE_SYMLINKS", "ON"}}).symlinks);
  EXPECT_EQ(Read({}).stall_seconds, 10);
  EXPECT_EQ(Read({{"HF_HUB_DOWNLOAD_TIMEOUT", "45"}}).stall_seconds, 45);
}

}  // namespace
}  // namespace tandem::hub
