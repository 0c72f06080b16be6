#include "lockstep/store/log_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/temporary_folder.h"

namespace lockstep::store {
namespace {

using lockstep::testing::FailureIs;
using lockstep::testing::IsOkAnd;
using lockstep::testing::StatusIs;
using lockstep::testing::TemporaryFolder;
using ::testing::HasSubstr;

using Begun = LogFile::Begun;

class LogFileTest : public ::testing::Test {
 protected:
  static Status set(LogFile& file, std::string_view key, ByteView value) {
    LOCKSTEP_ASSIGN(const Begun begun, file.begin(LockKind::kExclusive));
    if (begun != Begun::kYes) return Status::timeout("locked");
    Status status = file.state().set(key, value);
    if (status.ok()) status = file.commit({LogOp::kSet, {{key, value}}});
    file.end();
    return status;
  }
  // "key=value;...", or the error.
  static std::string contents(LogFile& file) {
    const Result<Begun> begun = file.begin(LockKind::kShared);
    if (!begun.ok()) return begun.status().text();
    if (*begun != Begun::kYes) return "locked";
    std::map<std::string, std::string> sorted;
    file.state().visit([&](auto name, auto value) { sorted[std::string(name)] = text_of(value); },
                       [&](auto name, auto value) { sorted[cat(name, "[]")] += text_of(value); });
    file.end();
    std::string out;
    for (const auto& [name, value] : sorted) out += cat(name, "=", value, ";");
    return out;
  }
  std::string contents() const {
    LogFile file(path_);
    return contents(file);
  }
  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(std::string_view bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  std::size_t size() const { return std::filesystem::file_size(path_); }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path("log");
};

TEST_F(LogFileTest, HandlesSeeEachOthersRecords) {
  LogFile a(path_), b(path_);
  ASSERT_OK(set(a, "key", bytes_of("1")));
  EXPECT_EQ(contents(b), "key=1;");
  ASSERT_OK(set(b, "key", bytes_of("2")));
  EXPECT_EQ(contents(a), "key=2;");
}

TEST_F(LogFileTest, IsForItsOwnerOnly) {
  LogFile file(path_);
  ASSERT_OK(set(file, "key", {}));
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(LogFileTest, AWriterExcludesAllAndReadersExcludeWriters) {
  LogFile a(path_), b(path_), c(path_);
  ASSERT_OK(set(a, "key", {}));
  ASSERT_OK(set(b, "key", {}));
  ASSERT_OK(set(c, "key", {}));
  ASSERT_THAT(a.begin(LockKind::kExclusive), IsOkAnd(Begun::kYes));
  EXPECT_THAT(b.begin(LockKind::kExclusive), IsOkAnd(Begun::kLocked));
  EXPECT_THAT(b.begin(LockKind::kShared), IsOkAnd(Begun::kLocked));
  a.end();
  ASSERT_THAT(a.begin(LockKind::kShared), IsOkAnd(Begun::kYes));
  EXPECT_THAT(b.begin(LockKind::kShared), IsOkAnd(Begun::kYes));
  EXPECT_THAT(c.begin(LockKind::kExclusive), IsOkAnd(Begun::kLocked));
  a.end();
  b.end();
  EXPECT_THAT(c.begin(LockKind::kExclusive), IsOkAnd(Begun::kYes));
  c.end();
}

TEST_F(LogFileTest, ATornRecordIsIgnoredAndThenCutOffWhereverItEnds) {
  LogFile writer(path_);
  ASSERT_OK(set(writer, "a", bytes_of("1")));
  const std::size_t before = size();
  ASSERT_OK(set(writer, "b", bytes_of("a value that was not written whole")));
  const std::string whole = bytes();
  for (std::size_t cut = before; cut < whole.size(); ++cut) {
    write(whole.substr(0, cut));
    EXPECT_EQ(contents(), "a=1;") << cut;
    EXPECT_EQ(size(), cut) << "a reader changed the file";
    LogFile next(path_);
    ASSERT_OK(set(next, "c", bytes_of("3")));
    EXPECT_EQ(contents(), "a=1;c=3;") << cut;
  }
}

TEST_F(LogFileTest, ATornHeaderIsWrittenAgain) {
  const std::string header(text_of(encode_log_header({})));
  for (std::size_t cut = 0; cut < header.size(); ++cut) {
    write(header.substr(0, cut));
    LogFile file(path_);
    ASSERT_OK(set(file, "key", bytes_of("1"))) << cut;
    EXPECT_EQ(contents(), "key=1;");
  }
}

TEST_F(LogFileTest, DamageIsToldWithItsPlaceAndNothingIsChanged) {
  LogFile writer(path_);
  ASSERT_OK(set(writer, "a", bytes_of("1")));
  const std::size_t place = size();
  ASSERT_OK(set(writer, "b", bytes_of("2")));
  ASSERT_OK(set(writer, "c", bytes_of("3")));
  for (const std::size_t offset : {place, place + 4, place + 14}) {  // length, checksum, body
    std::string damaged = bytes();
    damaged[offset] = static_cast<char>(damaged[offset] ^ 1);
    const TemporaryFolder other;
    std::ofstream(other.path("log"), std::ios::binary) << damaged;
    LogFile file(other.path("log"));
    const Status status = set(file, "d", {});
    EXPECT_THAT(status, FailureIs(Failure::kCorruptFrame));
    EXPECT_THAT(status, StatusIs(Code::kInternal, HasSubstr(cat("byte ", place))));
    EXPECT_EQ(std::filesystem::file_size(other.path("log")), damaged.size());
  }
}

TEST_F(LogFileTest, WhatIsNoStoreIsRefusedAndLeftAlone) {
  write("this is somebody's text, longer than a header would be\n");
  LogFile text(path_);
  EXPECT_THAT(set(text, "key", {}), StatusIs(Code::kInvalid, HasSubstr("not a Lockstep store")));
  write("short");
  LogFile brief(path_);
  EXPECT_THAT(set(brief, "key", {}), StatusIs(Code::kInvalid));
  EXPECT_EQ(bytes(), "short");
  LogFile folder(folder_.path());
  EXPECT_THAT(folder.begin(LockKind::kExclusive), StatusIs(Code::kInvalid));
  LogFile nowhere(folder_.path("no/such/folder"));
  EXPECT_THAT(nowhere.begin(LockKind::kExclusive), StatusIs(Code::kInvalid, HasSubstr("No such file")));
  LogFile device("/dev/null");
  EXPECT_THAT(device.begin(LockKind::kExclusive), StatusIs(Code::kInvalid, HasSubstr("plain file")));
}

TEST_F(LogFileTest, RemovedAndJustBeingMadeAnewIsLost) {
  LogFile file(path_);
  ASSERT_OK(set(file, "key", {}));
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  write("");  // created, and its header not written yet
  EXPECT_THAT(set(file, "key", {}), FailureIs(Failure::kStoreLost));
  EXPECT_EQ(bytes(), "");
}

TEST_F(LogFileTest, RemovedUnderneathTheStoreIsLost) {
  LogFile file(path_);
  ASSERT_OK(set(file, "key", {}));
  const LogFile sibling = file.sibling();
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  EXPECT_THAT(set(file, "key", {}), FailureIs(Failure::kStoreLost));
  EXPECT_THAT(set(file, "key", {}), StatusIs(Code::kDisconnected, HasSubstr("was removed")));
  LogFile late = sibling.sibling();
  EXPECT_THAT(set(late, "key", {}), FailureIs(Failure::kStoreLost));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(LogFileTest, AnotherStoreAtThePathIsNotTakenForThisOne) {
  LogFile file(path_);
  ASSERT_OK(set(file, "key", bytes_of("old")));
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  LogFile other(path_);
  ASSERT_OK(set(other, "key", bytes_of("new")));
  EXPECT_THAT(set(file, "key", bytes_of("mixed")),
              StatusIs(Code::kDisconnected, HasSubstr("belongs to another store")));
  EXPECT_EQ(contents(other), "key=new;");
}

TEST_F(LogFileTest, CutBySomeoneElseTheStoreIsLost) {
  LogFile file(path_);
  ASSERT_OK(set(file, "key", {}));
  ASSERT_EQ(::truncate(path_.c_str(), kLogHeaderSize), 0);
  EXPECT_THAT(set(file, "key", {}), FailureIs(Failure::kStoreLost));
}

TEST_F(LogFileTest, CompactionKeepsAllAndOthersFollow) {
  LogFile writer(path_), reader(path_);
  ASSERT_OK(set(writer, "first", bytes_of("1")));
  ASSERT_EQ(contents(reader), "first=1;");
  ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
  ASSERT_THAT(writer.begin(LockKind::kExclusive), IsOkAnd(Begun::kYes));
  for (const char* item : {"x", "y"}) {
    ASSERT_OK(writer.state().queue_push("queue", bytes_of(item)));
    ASSERT_OK(writer.commit({LogOp::kPush, {{"queue", bytes_of(item)}}}));
  }
  writer.end();
  std::ofstream(path_ + ".new") << "left behind by a writer that was killed";

  struct stat before = {}, after = {};
  ASSERT_EQ(::stat(path_.c_str(), &before), 0);
  const Buffer value(100'000, std::byte{'v'});
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(set(writer, "value", value));
    ASSERT_LT(size(), static_cast<std::size_t>(LogFile::kCompactSize) + 2 * value.size());
  }
  ASSERT_EQ(::stat(path_.c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino);
  EXPECT_EQ(after.st_mode & 0777, 0640U);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));

  const std::string expected = cat("first=1;queue[]=xy;value=", std::string(value.size(), 'v'), ";");
  EXPECT_EQ(contents(reader), expected);
  EXPECT_EQ(contents(), expected);
  ASSERT_OK(set(reader, "value", {}));
  EXPECT_EQ(contents(writer), "first=1;queue[]=xy;value=;");
}

TEST_F(LogFileTest, ACompactionThatFailsLosesNothing) {
  // Its place is taken by a folder, so that the new file cannot be made.
  ASSERT_EQ(::mkdir((path_ + ".new").c_str(), 0700), 0);
  LogFile writer(path_);
  const Buffer value(100'000, std::byte{'v'});
  for (int i = 0; i < 30; ++i) ASSERT_OK(set(writer, "value", value));
  EXPECT_GT(size(), static_cast<std::size_t>(LogFile::kCompactSize));
  EXPECT_EQ(contents(), cat("value=", std::string(value.size(), 'v'), ";"));
}

// For a host that still finds the old file under the path.
TEST_F(LogFileTest, AFileThatSaysItWasReplacedIsNotWrittenTo) {
  LogFile file(path_);
  ASSERT_OK(set(file, "key", {}));
  ASSERT_THAT(file.begin(LockKind::kExclusive), IsOkAnd(Begun::kYes));
  ASSERT_OK(file.commit({LogOp::kReplaced, {}}));
  file.end();
  const std::string before = bytes();
  LogFile other = file.sibling();
  EXPECT_THAT(other.begin(LockKind::kExclusive), IsOkAnd(Begun::kReplaced));
  EXPECT_EQ(bytes(), before);
}

// A file may grow no further, as on a full disk, but without a disk to fill.
TEST_F(LogFileTest, AFullDiskIsAnErrorAndTheFileHoldsWhatItHeld) {
  LogFile file(path_);
  ASSERT_OK(set(file, "key", bytes_of("old")));
  const std::size_t before = size();
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  rlimit small = unlimited;
  small.rlim_cur = before + 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = set(file, "key", Buffer(5000));
  const std::size_t after = size();
  const Status fits = set(file, "small", bytes_of("fits"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  std::signal(SIGXFSZ, old_action);

  EXPECT_THAT(status, FailureIs(Failure::kNoSpace));
  EXPECT_EQ(after, before);
  EXPECT_OK(fits);
  EXPECT_EQ(contents(file), "key=old;small=fits;");
  EXPECT_EQ(contents(), "key=old;small=fits;");
}

TEST_F(LogFileTest, AFolderThatIsReadOnlyIsNamedAsSuch) {
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0555), 0);
  // Rights do not bind root.
  const uid_t me = ::geteuid();
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(me == 0 ? ::seteuid(kNobody) : 0, 0);
  LogFile file(path_);
  const Status status = set(file, "key", {});
  ASSERT_EQ(::seteuid(me), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0700), 0);
  EXPECT_THAT(status, StatusIs(Code::kInvalid, HasSubstr("Permission denied")));
}

}  // namespace
}  // namespace lockstep::store
