// The main function of every test program: GoogleTest's, with the flag --tests_of=x_test.cc, which
// runs only the tests of that file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

// A GoogleTest filter with all tests that are declared in the file. Empty if there are none.
std::string TestsOf(std::string_view file) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  const std::string end = "/" + std::string(file);
  std::string filter;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!std::string_view(test.file()).ends_with(end)) continue;
      filter += std::string(filter.empty() ? "" : ":") + suite.name() + "." + test.name();
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kOption = "--tests_of=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kOption)) {
      std::fprintf(stderr, "%s: not an option of GoogleTest, nor --tests_of=FILE\n", argv[i]);
      return 2;
    }
    const std::string filter = TestsOf(argument.substr(kOption.size()));
    if (filter.empty()) {
      std::fprintf(stderr, "%s: no test of this program is declared in such a file\n", argv[i]);
      return 2;
    }
    ::testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
