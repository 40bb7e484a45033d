
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;

mode_t ModeOf(const std::string& path) {
  struct stat facts = {};
  EXPECT_EQ(::stat(path.c_str(), &facts), 0);
  return facts.st_mode & 0777;
}

TEST(PrivateFile, IsReadableByItsOwnerAlone) {
  const testing::TempDir dir;
  const std::string path = dir / "secret";
  ASSERT_THAT(WritePrivateFile(path, "one\n"), IsOk());
  EXPECT_EQ(ReadFile(path).value_or(""), "one\n");
  EXPECT_EQ(ModeOf(path), 0600u);
}

TEST(PrivateFile, ReplacesAFileThatOthersCouldRead) {
  const testing::TempDir dir;
  const std::string path = dir / "secret";
  std::ofstream(path) << "before";
  ::chmod(path.c_str(), 0644);
  ASSERT_THAT(WritePrivateFile(path, "after"), IsOk());
  EXPECT_EQ(ReadFile(path).value_or(""), "after");
  EXPECT_EQ(ModeOf(path), 0600u);
}

TEST(PrivateFile, APlaceThatIsNotThereIsNamed) {
  const testing::TempDir dir;
  EXPECT_THAT(WritePrivateFile(dir / "none/secret", "x"),
              FailsWith(absl::StatusCode::kUnavailable, "none/secret"));
}

}  // namespace
}  // namespace tandem
