// The main() of test programs. `--file=store_test.cpp`, as often as needed, runs the tests of those files of
// the program alone, so that the tests of a folder can be one program and each of its files a process.
// Without it, all of them run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::testing {
namespace {

constexpr std::string_view kFile = "--file=";

bool is_in(std::string_view path, std::string_view file) {
  return path.ends_with(file) && (path.size() == file.size() || path[path.size() - file.size() - 1] == '/');
}

// GoogleTest's filter for the tests of `files`; empty, with a line on stderr, if one of them has none, or if
// there are tests of which no file could ask.
std::string filter_of(const std::vector<std::string_view>& files) {
  std::string filter;
  std::vector<std::string_view> without = files;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string_view path = test.file();
      if (!path.ends_with("_test.cpp")) {
        std::cerr << path << ": its tests need a program of their own, lockstep_test(... ALONE)\n";
        return {};
      }
      const auto file =
          std::find_if(files.begin(), files.end(), [&](auto name) { return is_in(path, name); });
      if (file == files.end()) continue;
      std::erase(without, *file);
      filter.append(suite.name()).append(".").append(test.name()).append(":");
    }
  }
  for (const std::string_view file : without) std::cerr << file << ": this program has no tests of it\n";
  return without.empty() ? filter : std::string();
}

int run_tests(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  std::vector<std::string_view> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with(kFile)) files.push_back(word.substr(kFile.size()));
  }
  // What the filter takes away stays away; one that asks for tests by name is that of a death test's child.
  const std::string given = ::testing::GTEST_FLAG(filter);
  if (!files.empty() && (given == "*" || given.starts_with('-'))) {
    const std::string filter = filter_of(files);
    if (filter.empty()) return 1;
    ::testing::GTEST_FLAG(filter) = filter + (given == "*" ? "" : given);
  }
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) { return lockstep::testing::run_tests(argc, argv); }
