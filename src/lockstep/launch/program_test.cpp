#include "lockstep/launch/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

class ResolveProgram : public ::testing::Test {
 protected:
  ResolveProgram()
      : folder_(std::filesystem::path(::testing::TempDir()) / ("program_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_ / "bin");
    make("bin/tool", 0755);
    make("bin/python3", 0755);
    make("bin/plain", 0644);
    make("train.py", 0644);
  }
  ~ResolveProgram() override { std::filesystem::remove_all(folder_); }
  void make(const std::string& name, mode_t mode) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n";
    chmod((folder_ / name).c_str(), mode);
  }
  std::string at(const std::string& name) const { return folder_ / name; }
  Result<Program> resolve(RunOptions options) const {
    return resolve_program(options, {{"PATH", at("bin")}});
  }

  const std::filesystem::path folder_;
};

TEST_F(ResolveProgram, FindsAProgramInPathOrByItsPath) {
  ASSERT_OK_AND_ASSIGN(const Program found, resolve({.command = {"tool", "-x"}}));
  EXPECT_EQ(found.path, at("bin/tool"));
  EXPECT_THAT(found.argv, ElementsAre("tool", "-x"));
  ASSERT_OK_AND_ASSIGN(const Program direct, resolve({.command = {at("bin/tool")}}));
  EXPECT_EQ(direct.path, at("bin/tool"));
}

TEST_F(ResolveProgram, GivesScriptsAndModulesToPython) {
  ASSERT_OK_AND_ASSIGN(const Program script, resolve({.command = {at("train.py"), "a"}}));
  EXPECT_THAT(script.argv, ElementsAre(at("bin/python3"), "-u", at("train.py"), "a"));
  ASSERT_OK_AND_ASSIGN(const Program module,
                       resolve({.command = {"pkg.train", "a"}, .kind = ProgramKind::kModule}));
  EXPECT_THAT(module.argv, ElementsAre(at("bin/python3"), "-u", "-m", "pkg.train", "a"));
  ASSERT_OK_AND_ASSIGN(const Program other, resolve({.command = {at("train.py")}, .python = at("bin/tool")}));
  EXPECT_EQ(other.path, at("bin/tool"));
}

TEST_F(ResolveProgram, NoPythonMeansTheFileItself) {
  EXPECT_THAT(resolve({.command = {at("train.py")}, .kind = ProgramKind::kDirect}),
              StatusIs(Code::kUnsupported, HasSubstr("chmod +x")));
}

TEST_F(ResolveProgram, TellsMissingFromNotExecutable) {
  EXPECT_THAT(resolve({.command = {"nothing"}}),
              StatusIs(Code::kInvalid, HasSubstr(R"(no program "nothing" in PATH)")));
  EXPECT_THAT(resolve({.command = {"./nothing"}}),
              StatusIs(Code::kInvalid, HasSubstr(R"(no program "./nothing")")));
  EXPECT_THAT(resolve({.command = {"nothing.py"}}), StatusIs(Code::kInvalid, HasSubstr("no Python script")));
  EXPECT_THAT(resolve({.command = {"plain"}}), StatusIs(Code::kUnsupported, HasSubstr("not executable")));
  EXPECT_THAT(resolve({.command = {at("bin")}}), StatusIs(Code::kUnsupported, HasSubstr("is a folder")));
  EXPECT_THAT(resolve({.command = {""}}), StatusIs(Code::kInvalid, HasSubstr("empty")));
  EXPECT_THAT(resolve({.command = {at("train.py")}, .python = "python9"}),
              StatusIs(Code::kInvalid, HasSubstr("Python is needed")));
}

}  // namespace
}  // namespace lockstep::launch
