// A folder for one test's files, removed with all that is in it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/base/check.h"

namespace lockstep::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(::testing::TempDir() + "lockstep.XXXXXX") {
    LOCKSTEP_CHECK(::mkdtemp(path_.data()) != nullptr, path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace lockstep::testing
