#include "lockstep/store/file_store.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/store_conformance.h"
#include "lockstep/testing/temporary_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class FileStores final : public StoreFamily {
 public:
  explicit FileStores(const StoreOptions& options) : options_(options) {}
  std::unique_ptr<Store> open() override { return std::move(FileStore::open(path_, options_)).value(); }

 private:
  const StoreOptions options_;
  const TemporaryFolder folder_;
  const std::string path_ = folder_.path("store");
};
LOCKSTEP_STORE_CONFORMANCE(FileStore, FileStores);

class FileStoreTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  const std::string path_ = folder_.path("store");
};

TEST_F(FileStoreTest, ErrorsNameTheFile) {
  const std::string nowhere = folder_.path("no/such/folder");
  EXPECT_THAT(FileStore::open(nowhere), StatusIs(Code::kInvalid, HasSubstr(nowhere)));
}

TEST_F(FileStoreTest, ARelativePathStaysTheSameFileInAnotherWorkingFolder) {
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  Result<std::unique_ptr<FileStore>> store = FileStore::open("store");
  std::filesystem::current_path(before);
  ASSERT_OK(store);
  EXPECT_OK((*store)->set("key", {}));
  EXPECT_OK((*store)->clone());
  EXPECT_THAT(FileStore::open(""), StatusIs(Code::kInvalid));
}

TEST_F(FileStoreTest, ALinkIsFollowedAndNotReplacedByACompaction) {
  ASSERT_OK_AND_ASSIGN(const auto store, FileStore::open(path_));
  const std::string link = folder_.path("link");
  std::filesystem::create_symlink(path_, link);
  ASSERT_OK_AND_ASSIGN(const auto linked, FileStore::open(link));
  const std::uintmax_t big = store::LogFile::kCompactSize / 2;
  for (int i = 0; i < 10; ++i) ASSERT_OK(linked->set("key", Buffer(big)));
  EXPECT_LT(std::filesystem::file_size(path_), 5 * big);  // it was compacted
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  ASSERT_OK(linked->set("key", bytes_of("1")));
  EXPECT_THAT(store->get("key"), holds("1"));
}

TEST_F(FileStoreTest, AHardLinkThatACompactionLeftBehindIsToldAsSuch) {
  ASSERT_OK_AND_ASSIGN(const auto store, FileStore::open(path_));
  const std::string link = folder_.path("link");
  std::filesystem::create_hard_link(path_, link);
  ASSERT_OK_AND_ASSIGN(const auto linked, FileStore::open(link));
  for (int i = 0; i < 10; ++i) ASSERT_OK(store->set("key", Buffer(store::LogFile::kCompactSize / 2)));
  EXPECT_THAT(linked->set("key", {}, Clock::steady().in(0s)),
              StatusIs(Code::kTimeout, HasSubstr("hard link")));
}

TEST_F(FileStoreTest, OnceLostItStaysLost) {
  ASSERT_OK_AND_ASSIGN(const auto store, FileStore::open(path_));
  ASSERT_OK(store->set("key", {}));
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  EXPECT_THAT(store->get("key"), FailureIs(Failure::kStoreLost));
  ASSERT_OK_AND_ASSIGN(const auto other, FileStore::open(path_));
  ASSERT_OK(other->set("key", {}));
  EXPECT_THAT(store->get("key"), StatusIs(Code::kDisconnected, HasSubstr("was removed")));
  EXPECT_THAT(store->clone(), FailureIs(Failure::kStoreLost));
}

TEST_F(FileStoreTest, AWaiterHearsThatTheFileWasRemoved) {
  ASSERT_OK_AND_ASSIGN(const auto store, FileStore::open(path_));
  Status status;
  run_threads(2, [&](int i) {
    if (i == 0) status = store->wait(std::vector<std::string>{"never"});
    if (i == 1) ::unlink(path_.c_str());
  });
  EXPECT_THAT(status, FailureIs(Failure::kStoreLost));
}

// As by a process that was stopped in the middle of a step.
TEST_F(FileStoreTest, ALockThatIsNeverReleasedEndsTheCallByItsDeadline) {
  FakeClock clock;
  ASSERT_OK_AND_ASSIGN(const auto store, FileStore::open(path_, {.timeout = 5s, .clock = &clock}));
  store::LogFile holder(path_);
  ASSERT_THAT(holder.begin(store::LockKind::kExclusive), IsOkAnd(store::LogFile::Begun::kYes));
  std::atomic<bool> done = false;
  run_threads(2, [&](int i) {
    if (i == 1) {
      EXPECT_THAT(store->set("key", {}), StatusIs(Code::kTimeout, HasSubstr("locked")));
      EXPECT_THAT(store->get("key"), StatusIs(Code::kTimeout, HasSubstr("locked")));
      done = true;
    }
    for (std::uint64_t seen = clock.waits(); !done; std::this_thread::yield()) {
      if (clock.waits() == seen) continue;
      seen = clock.waits();
      clock.advance(50ms);
    }
  });
  holder.end();
  EXPECT_OK(store->set("key", {}));
}

// By a limit on the size of files instead of a full disk.
TEST_F(FileStoreTest, AFullDiskIsTypedAndTheStoreGoesOn) {
  ASSERT_OK_AND_ASSIGN(const auto store, FileStore::open(path_));
  ASSERT_OK(store->set("key", bytes_of("old")));
  ASSERT_OK(store->queue_push("queue", bytes_of("item")));
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  rlimit small = unlimited;
  small.rlim_cur = std::filesystem::file_size(path_);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status set = store->set("key", Buffer(1000));
  const Status popped = store->queue_pop("queue").status();
  const Status deleted = store->delete_key("key").status();
  const Result<Buffer> value = store->get("key");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  std::signal(SIGXFSZ, old_action);

  EXPECT_THAT(set, FailureIs(Failure::kNoSpace));
  EXPECT_THAT(set, StatusIs(Code::kInternal, HasSubstr(path_)));
  EXPECT_THAT(popped, FailureIs(Failure::kNoSpace));
  EXPECT_THAT(deleted, FailureIs(Failure::kNoSpace));
  EXPECT_THAT(value, holds("old"));
  EXPECT_THAT(store->queue_pop("queue"), holds("item"));
  EXPECT_OK(store->set("key", bytes_of("new")));
}

}  // namespace
}  // namespace lockstep::testing
