#include "lockstep/base/error_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::base {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

class ErrorFile : public ::testing::Test {
 protected:
  ErrorFile()
      : folder_(std::filesystem::path(::testing::TempDir()) / ("error_file_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ErrorFile() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ / "error.json"; }
  void write(std::string_view text) const { std::ofstream(path()) << text; }

  const std::filesystem::path folder_;
};

Status peer_died() {
  return Status::disconnected("rank 1: all_reduce #7 lost rank 3", {.failure = Failure::kPeerDied,
                                                                    .rank = Rank{1},
                                                                    .peer = Rank{3},
                                                                    .op = "all_reduce",
                                                                    .sequence = 7,
                                                                    .group = "world",
                                                                    .host = "node7",
                                                                    .pid = 4711,
                                                                    .missing = {Rank{3}, Rank{4}}});
}

TEST_F(ErrorFile, ComesBackAsItWasWritten) {
  const Status status = peer_died();
  ASSERT_OK(write_error_file(path(), status));
  ASSERT_OK_AND_ASSIGN(const ErrorRecord record, read_error_file(path()));
  EXPECT_EQ(record.status.code(), status.code());
  EXPECT_EQ(record.status.message(), status.message());
  EXPECT_EQ(record.status.cause(), status.cause());
  EXPECT_EQ(record.where, status.where());
  EXPECT_EQ(record.pid, getpid());
  EXPECT_EQ(record.host, base::host_name());
}

TEST_F(ErrorFile, TheFirstErrorStaysAndNoDraftIsLeft) {
  ASSERT_OK(write_error_file(path(), Status::invalid("first")));
  ASSERT_OK(write_error_file(path(), Status::invalid("second")));
  ASSERT_OK_AND_ASSIGN(const ErrorRecord record, read_error_file(path()));
  EXPECT_EQ(record.status.message(), "first");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(ErrorFile, BytesThatAreNoTextAreReplaced) {
  ASSERT_OK(write_error_file(path(), Status::internal("bad \xff byte")));
  ASSERT_OK_AND_ASSIGN(const ErrorRecord record, read_error_file(path()));
  EXPECT_THAT(std::string(record.status.message()), HasSubstr("bad "));
}

TEST_F(ErrorFile, AFolderThatIsNotThereIsAnError) {
  EXPECT_FALSE(write_error_file((folder_ / "no" / "error.json").string(), Status::invalid("x")).ok());
}

TEST_F(ErrorFile, ANoteIsTheFirstErrorUntilItIsWithdrawn) {
  Environment environment;
  environment.error_file = path();
  const ErrorNote note(environment);
  note.write(peer_died());
  note.write(Status::invalid("second"));
  ASSERT_OK_AND_ASSIGN(const ErrorRecord record, read_error_file(path()));
  EXPECT_EQ(record.status.cause(), peer_died().cause());
  note.withdraw();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

// A spawned rank that goes on after a failure must not be taken for one that failed.
TEST_F(ErrorFile, NoNoteGoesToTheParentOfASpawnedRank) {
  const UniqueFd memfd(memfd_create("error", MFD_CLOEXEC));
  ASSERT_TRUE(memfd);
  Environment environment;
  environment.error_file = cat("/proc/self/fd/", memfd.get());
  ErrorNote(environment).write(peer_died());
  EXPECT_EQ(lseek(memfd.get(), 0, SEEK_END), 0);
  ErrorNote().write(peer_died());
  ErrorNote().withdraw();
}

TEST_F(ErrorFile, UnderstandsTorchsRecord) {
  write(
      R"({"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"}}})");
  ASSERT_OK_AND_ASSIGN(const ErrorRecord record, read_error_file(path()));
  EXPECT_EQ(record.status.message(), "RuntimeError: boom");
}

TEST_F(ErrorFile, RefusesWhatIsNeither) {
  for (const char* text : {"", "{", "[]", "{}", "3", R"({"message": 3})"}) {
    write(text);
    EXPECT_THAT(read_error_file(path()), StatusIs(Code::kInvalid)) << text;
  }
  write(std::string(2U << 20, 'x'));
  EXPECT_THAT(read_error_file(path()), StatusIs(Code::kInvalid, HasSubstr("1 MiB")));
}

TEST_F(ErrorFile, FieldsOfTheWrongTypeAreLeftOut) {
  write(
      R"({"lockstep_error": 1, "code": 5, "message": "m", "cause": {"rank": "x", "missing": [1, "y"]}, "pid": "z"})");
  ASSERT_OK_AND_ASSIGN(const ErrorRecord record, read_error_file(path()));
  EXPECT_EQ(record.status.code(), Code::kInternal);
  EXPECT_FALSE(record.status.cause().rank);
  EXPECT_THAT(record.status.cause().missing, ::testing::ElementsAre(Rank{1}));
}

}  // namespace
}  // namespace lockstep::base
