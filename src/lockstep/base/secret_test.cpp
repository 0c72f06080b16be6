#include "lockstep/base/secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A folder of its own for each test, removed at the end.
class SecretFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "secret_test.XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(std::string_view name) const { return (folder_ / name).string(); }
  std::string file(std::string_view name, std::string_view content, mode_t mode = 0600) const {
    std::ofstream(path(name), std::ios::binary) << content;
    EXPECT_EQ(chmod(path(name).c_str(), mode), 0);
    return path(name);
  }
  static std::string error_of(const std::string& path) {
    const auto secret = Secret::from_file(path);
    return secret.ok() ? "ok" : std::string(secret.status().message());
  }

  std::filesystem::path folder_;
};

const std::string kRaw = "0123456789abcdef\x01\x02\x03\x04zyxwvutsrqpo";
const std::string kDigits =
    "3031323334353637383961626364656601020304"
    "7a797877767574737271706f";

TEST(Secret, GeneratesDifferentOnes) {
  const Secret a = Secret::generate(), b = Secret::generate();
  EXPECT_EQ(a.bytes().size(), kSecretSize);
  EXPECT_NE(hex(a.bytes()), hex(b.bytes()));
  EXPECT_FALSE(a.is_insecure());
}

TEST(Secret, ComesBackFromItsBytes) {
  const Secret secret = Secret::generate();
  EXPECT_EQ(hex(Secret::from_bytes(secret.bytes().first<kSecretSize>()).bytes()), hex(secret.bytes()));
}

TEST(Secret, InsecureIsTheSameEverywhere) {
  EXPECT_TRUE(Secret::insecure().is_insecure());
  // Part of the wire format: processes of two builds must agree on it.
  EXPECT_EQ(hex(Secret::insecure().bytes()),
            "0232bed2b9358d778765761f6fb2f99bccde1ed2e94927b78962a43c105ea2bc");
}

TEST(Secret, PageIsLeftOutOfCoreDumps) {
  const Secret secret = Secret::generate();
  std::ifstream smaps("/proc/self/smaps");
  const std::string start = [&] {
    const auto address = reinterpret_cast<std::uintptr_t>(secret.bytes().data());
    char text[32];
    std::snprintf(text, sizeof(text), "%lx-", static_cast<unsigned long>(address));
    return std::string(text);
  }();
  bool inside = false;
  std::string flags;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(start)) inside = true;
    if (inside && line.starts_with("VmFlags:")) {
      flags = line + " ";
      break;
    }
  }
  EXPECT_THAT(flags, HasSubstr(" dd "))
      << "the mapping at " << start << " must have the flag dd (do not dump)";
}

TEST(Secret, ForkedChildKeepsIt) {
  const Secret secret = Secret::generate();
  const std::string expected = hex(secret.bytes());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(hex(secret.bytes()) == expected ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Secret, TravelsByMemfd) {
  const Secret secret = Secret::generate();
  auto fd = secret.to_memfd();
  ASSERT_TRUE(fd.ok()) << fd.status().text();
  EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
  const auto copy = Secret::from_fd(fd->get());
  ASSERT_TRUE(copy.ok()) << copy.status().text();
  EXPECT_EQ(hex(copy->bytes()), hex(secret.bytes()));
  // Read twice: the position of the shared descriptor does not move.
  EXPECT_TRUE(Secret::from_fd(fd->get()).ok());
}

TEST(Secret, MemfdCannotBeChangedAndIsForItsOwnerOnly) {
  auto fd = Secret::generate().to_memfd();
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(pwrite(fd->get(), "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd->get(), 0), -1);
  struct stat file {};
  ASSERT_EQ(fstat(fd->get(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0400U);
}

TEST(Secret, FromFdRefusesWhatIsNotAMemfdOf32Bytes) {
  EXPECT_EQ(Secret::from_fd(-1).status().code(), Code::kInvalid);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  EXPECT_THAT(std::string(Secret::from_fd(read_end.get()).status().message()),
              HasSubstr("not a memfd of 32 bytes"));
}

TEST_F(SecretFile, HoldsDigitsOrRawBytes) {
  for (const std::string& content : {kRaw, kDigits, kDigits + "\n", " \t" + kDigits + "\r\n\n",
                                     std::string("3031323334353637383961626364656601020304"
                                                 "7A797877767574737271706F")}) {
    const auto secret = Secret::from_file(file("secret", content));
    ASSERT_TRUE(secret.ok()) << secret.status().text();
    EXPECT_EQ(text_of(secret->bytes()), kRaw);
  }
}

TEST_F(SecretFile, OtherContentIsRefusedAndNotQuoted) {
  for (const std::string& content :
       {std::string(), std::string("x"), kRaw.substr(1), kRaw + "\n", kDigits.substr(1), kDigits + "0",
        kDigits.substr(1) + "g", kDigits.substr(0, 32) + " " + kDigits.substr(33),
        std::string(100'000, 'a')}) {
    EXPECT_THAT(error_of(file("secret", content)),
                AllOf(HasSubstr("neither 64 hexadecimal digits nor 32 raw bytes"),
                      HasSubstr("lockstep secret"), Not(HasSubstr("3031"))))
        << content.size();
  }
}

TEST_F(SecretFile, AccessByOthersIsRefusedWithTheCommandThatMendsIt) {
  for (const mode_t mode : {0644U, 0604U, 0602U, 0666U, 0620U, 0610U, 0601U}) {
    EXPECT_THAT(error_of(file("secret", kDigits, mode)),
                HasSubstr("mend it with: chmod 600 " + path("secret")))
        << mode;
  }
  EXPECT_THAT(error_of(file("secret", kDigits, 0644)), HasSubstr("mode 0644"));
  for (const mode_t mode : {0600U, 0400U, 0700U})
    EXPECT_EQ(error_of(file("secret", kDigits, mode)), "ok") << mode;
}

TEST(CheckSecretFile, OwnerAndModeDecide) {
  constexpr uid_t kSelf = 1000, kOther = 1001, kRoot = 0;
  struct Case {
    uid_t owner;
    mode_t mode;
    uid_t self;
    const char* error;  // empty: accepted
  };
  const Case kCases[] = {
      {kSelf, 0600, kSelf, ""},
      {kSelf, 0640, kSelf, "chmod 600 /s"},
      {kRoot, 0600, kSelf, ""},
      {kRoot, 0440, kSelf, ""},  // a Kubernetes secret with an fsGroup
      {kRoot, 0460, kSelf, "chmod 600 /s"},
      {kRoot, 0444, kSelf, "chmod 600 /s"},
      {kOther, 0600, kSelf,
       "belongs to user 1001, not to this user (1000) or root; mend it with: chown 1000 /s"},
      {kOther, 0600, kRoot, "belongs to user 1001, not to this user (0) or root; mend it with: chown 0 /s"},
      {kRoot, 0640, kRoot, ""},
  };
  for (const Case& c : kCases) {
    const Status status =
        check_secret_file("/s", {.owner = c.owner, .mode = S_IFREG | c.mode, .self = c.self});
    EXPECT_EQ(status.ok(), *c.error == '\0') << c.owner << " " << c.mode << " " << c.self;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.error));
  }
}

TEST_F(SecretFile, AFolderAFifoAndNothingAreRefused) {
  EXPECT_THAT(error_of(folder_.string()), HasSubstr("is a folder"));
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(error_of(path("fifo")), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of(path("missing")), HasSubstr("No such file"));
}

TEST_F(SecretFile, LinksAsKubernetesMountsThemAreJudgedByTheirTarget) {
  // secret -> ..data/secret, ..data -> ..2024_05_01/, and the file in there.
  std::filesystem::create_directory(folder_ / "..2024_05_01");
  const std::string target = file("..2024_05_01/secret", kDigits, 0400);
  std::filesystem::create_directory_symlink("..2024_05_01", folder_ / "..data");
  std::filesystem::create_symlink("..data/secret", folder_ / "secret");
  EXPECT_EQ(error_of(path("secret")), "ok");
  ASSERT_EQ(chmod(target.c_str(), 0644), 0);
  EXPECT_THAT(error_of(path("secret")), AllOf(HasSubstr("mode 0644"), HasSubstr("defaultMode: 0400")));
}

TEST_F(SecretFile, NewFileHasMode0600AndReadsBack) {
  const Secret secret = Secret::generate();
  const mode_t before = umask(0);
  const Status status = secret.to_new_file(path("new"));
  umask(before);
  ASSERT_TRUE(status.ok()) << status.text();
  struct stat file {};
  ASSERT_EQ(stat(path("new").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  EXPECT_EQ(file.st_size, 65);
  const auto copy = Secret::from_file(path("new"));
  ASSERT_TRUE(copy.ok()) << copy.status().text();
  EXPECT_EQ(hex(copy->bytes()), hex(secret.bytes()));
}

TEST_F(SecretFile, AnExistingFileOrLinkIsNeverOverwritten) {
  file("old", "precious");
  std::filesystem::create_symlink("nowhere", folder_ / "link");
  for (const char* name : {"old", "link"}) {
    const Status status = Secret::generate().to_new_file(path(name));
    EXPECT_EQ(status.code(), Code::kInvalid);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not overwritten"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "nowhere"));
  EXPECT_THAT(std::string(Secret::generate().to_new_file(path("no/such/folder")).message()),
              HasSubstr("No such file"));
}

}  // namespace
}  // namespace lockstep::base
