#include "lockstep/store/job_secret.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/base/bytes.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using ::testing::AllOf;
using testing::FailureIs;
using ::testing::HasSubstr;
using testing::StatusIs;
using Variables = std::map<std::string, std::string, std::less<>>;

class JobSecretTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "job_secret_test.XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A new secret in a file; the name says where it came from.
  std::string file(const std::string& name) {
    const Secret secret = Secret::generate();
    const std::string path = folder_ / name;
    EXPECT_OK(secret.to_new_file(path));
    digits_[name] = base::hex(secret.bytes());
    return path;
  }
  // Which file's secret was found; "none".
  std::string found(const SecretSources& sources, const Variables& variables) {
    const auto secret = find_secret(sources, *Environment::parse(variables));
    if (!secret.ok()) return std::string(secret.status().message());
    if (!*secret) return "none";
    for (const auto& [name, digits] : digits_) {
      if (digits == base::hex((*secret)->bytes())) return name;
    }
    return "another";
  }

  std::filesystem::path folder_;
  std::map<std::string, std::string> digits_;
};

TEST_F(JobSecretTest, TheFirstSourceWins) {
  const std::string caller = file("caller"), variable = file("variable"), mounted = file("mounted");
  const Secret launched = Secret::generate();
  digits_["launcher"] = base::hex(launched.bytes());
  ASSERT_OK_AND_ASSIGN(const base::UniqueFd memfd, launched.to_memfd());
  const SecretSources pod{.file = {}, .mounted = mounted};
  const Variables none;
  const Variables in_pod = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}};
  const Variables by_file = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"LOCKSTEP_SECRET_FILE", variable}};
  Variables by_fd = by_file;
  by_fd["LOCKSTEP_SECRET_FD"] = std::to_string(memfd.get());
  EXPECT_EQ(found({.file = caller, .mounted = mounted}, by_fd), "caller");
  EXPECT_EQ(found(pod, by_fd), "launcher");
  EXPECT_EQ(found(pod, by_file), "variable");
  EXPECT_EQ(found(pod, in_pod), "mounted");
  EXPECT_EQ(found(pod, none), "none") << "the mount is looked at in a pod only";
  EXPECT_EQ(found({.file = {}, .mounted = folder_ / "absent"}, in_pod), "none");
}

TEST_F(JobSecretTest, ASecretThatCannotBeReadIsNeverSkipped) {
  const std::string open_to_all = file("open");
  ASSERT_EQ(::chmod(open_to_all.c_str(), 0644), 0);
  EXPECT_THAT(found({}, {{"LOCKSTEP_SECRET_FILE", open_to_all}}),
              AllOf(HasSubstr("LOCKSTEP_SECRET_FILE"), HasSubstr("chmod 600")));
  EXPECT_THAT(found({}, {{"LOCKSTEP_SECRET_FILE", "/nonexistent"}}), HasSubstr("/nonexistent"));
  EXPECT_THAT(found({}, {{"LOCKSTEP_SECRET_FD", "987654"}}), HasSubstr("LOCKSTEP_SECRET_FD"));
  EXPECT_THAT(found({.file = {}, .mounted = open_to_all}, {{"KUBERNETES_SERVICE_HOST", "h"}}),
              HasSubstr("chmod 600"));
}

TEST_F(JobSecretTest, TheRefusalPrintsTheLinesToAdd) {
  const Status refusal = no_secret("The store at 10.0.0.1:29500");
  EXPECT_THAT(refusal, FailureIs(Failure::kNoSecret));
  EXPECT_THAT(refusal, StatusIs(Code::kInvalid, AllOf(HasSubstr("The store at 10.0.0.1:29500 would be open"),
                                                      HasSubstr("\n  export LOCKSTEP_SECRET_FILE=FILE\n"),
                                                      HasSubstr("\n  export LOCKSTEP_INSECURE=1"))));
}

}  // namespace
}  // namespace lockstep::store
