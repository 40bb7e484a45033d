#include "trainer/run/run_owner.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

TEST(RunOwner, ARunThatGoesOnIsTheSameOwner) {
  const TempDir dir;
  const auto first = OpenRunOwner(dir / "owner", "small", /*resumed=*/false);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->run_id.substr(0, 6), "small-");
  EXPECT_EQ(first->secret.size(), 64u);
  const auto again = OpenRunOwner(dir / "owner", "small", /*resumed=*/true);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->run_id, first->run_id);
  EXPECT_EQ(again->secret, first->secret);
}

TEST(RunOwner, ANewRunIsAnotherOwnerWhateverIsThere) {
  const TempDir dir;
  const auto first = OpenRunOwner(dir / "owner", "small", /*resumed=*/false);
  const auto second = OpenRunOwner(dir / "owner", "small", /*resumed=*/false);
  ASSERT_THAT(second, IsOk());
  EXPECT_NE(second->run_id, first->run_id);
  EXPECT_NE(second->secret, first->secret);
}

TEST(RunOwner, ItsFileIsReadableByItsUserAlone) {
  const TempDir dir;
  ASSERT_THAT(OpenRunOwner(dir / "owner", "small", /*resumed=*/false), IsOk());
  struct stat facts = {};
  ASSERT_EQ(::stat((dir / "owner").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
}

// A run of a release that kept none, or a file that a crash of the disk left.
TEST(RunOwner, AFileThatIsMissingOrMakesNoSenseIsReplaced) {
  const TempDir dir;
  const std::string path = dir / "owner";
  for (const char* text : {"", "small-1\n", "small-1\nshort\n", "a\nb\nc\n"}) {
    if (*text != '\0') {
      ASSERT_THAT(WriteFileAtomically(path, text), IsOk());
    }
    const auto owner = OpenRunOwner(path, "small", /*resumed=*/true);
    ASSERT_THAT(owner, IsOk()) << text;
    EXPECT_EQ(owner->secret.size(), 64u);
    EXPECT_EQ(OpenRunOwner(path, "small", /*resumed=*/true)->secret, owner->secret);
  }
}

}  // namespace
}  // namespace tandem::trainer
