#include "lockstep/launch/spawn.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/base/net.h"
#include "lockstep/base/process.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/temporary_folder.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::FailureIs;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

const Spawner* spawner = nullptr;  // main()'s

// What ranks do. The first argument is a folder where they meet.

void touch(const std::filesystem::path& path) { std::ofstream(path) << "x"; }

void await(const std::filesystem::path& path) {
  while (!std::filesystem::exists(path)) usleep(1000);
}

Status note_arguments(const SpawnedRank& rank) {
  std::ofstream(std::filesystem::path(rank.arguments[0]) / cat(rank.rank))
      << rank.world_size.value << " " << rank.arguments.size() << " " << rank.arguments[1] << " "
      << rank.environment.all.contains("LOCKSTEP_SPAWN_FD");
  return {};
}

Status check_grants(const SpawnedRank& rank) {
  const Environment& environment = rank.environment;
  LOCKSTEP_TRY(Secret::from_fd(*environment.secret_fd).status());
  if (rank.rank == Rank{0}) {
    LOCKSTEP_ASSIGN(const auto address, base::local_address(*environment.store_fd));
    if (address.text() != *environment.store_addr)
      return Status::internal("the socket is not where it should be");
  } else if (environment.store_fd) {
    return Status::internal("a rank that does not serve has a socket");
  }
  return environment.job_id && environment.epoch == 0U ? Status() : Status::internal("the job has no name");
}

Status fail_typed(const SpawnedRank& rank) {
  if (rank.rank != Rank{1}) return pause(), Status();
  return Status::timeout("waited for rank 3",
                         {.failure = Failure::kMissingRanks, .op = "join", .missing = {Rank{3}}});
}

Status throw_something(const SpawnedRank& rank) {
  if (rank.rank == Rank{0}) throw std::runtime_error("the model has no layers");
  return pause(), Status();
}

Status die(const SpawnedRank& rank) {
  if (rank.rank == Rank{2}) raise(SIGKILL);
  return pause(), Status();
}

Status die_when_told(const SpawnedRank& rank) {
  const std::filesystem::path folder = rank.arguments[0];
  touch(folder / "ready");
  await(folder / "go");
  raise(SIGKILL);
  return {};
}

Status leave_early(const SpawnedRank&) { std::exit(3); }

// Rank 0 hears of rank 1's failure before the parent does.
Status blame(const SpawnedRank& rank) {
  const std::filesystem::path folder = rank.arguments[0];
  if (rank.rank == Rank{0}) {
    await(folder / "ready");
    touch(folder / "blamed");
    return Status::disconnected("lost rank 1", {.failure = Failure::kPeerDied, .peer = Rank{1}});
  }
  if (rank.rank == Rank{1}) {
    touch(folder / "ready");
    await(folder / "blamed");
    return Status::invalid("the true cause");
  }
  return pause(), Status();
}

Status ignore_sigterm(const SpawnedRank& rank) {
  const std::filesystem::path folder = rank.arguments[0];
  if (rank.rank == Rank{0}) {
    await(folder / "ready");
    return Status::invalid("over");
  }
  signal(SIGTERM, SIG_IGN);
  touch(folder / "ready");
  return pause(), Status();
}

class Spawn : public ::testing::Test {
 protected:
  Status spawn(std::string_view name, int size, std::vector<std::string> more = {},
               const SpawnOptions& options = {}) {
    std::vector<std::string> arguments = {folder_.path()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return spawner->spawn(name, WorldSize{size}, arguments, options);
  }
  void TearDown() override { EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a rank was left"; }

  testing::TemporaryFolder folder_;
};

TEST_F(Spawn, EveryRankRunsTheFunctionWithItsArguments) {
  ASSERT_OK(spawn("note_arguments", 3, {"a b\nc"}));
  for (int rank = 0; rank < 3; ++rank) {
    std::ifstream file(std::filesystem::path(folder_.path()) / cat(rank));
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(text, "3 2 a b\nc 1");
  }
}

TEST_F(Spawn, RanksHaveWhatALauncherGives) { EXPECT_OK(spawn("check_grants", 3)); }

TEST_F(Spawn, AVariableThatNamesNoMemoryIsQuotedAsItWasGiven) {
  for (const std::string given : {"x", "-1", "999"}) {
    FILE* const child =
        popen(cat("LOCKSTEP_SPAWN_FD=", given, " /proc/", getpid(), "/exe 2>&1").c_str(), "r");
    ASSERT_NE(child, nullptr);
    char said[512] = "";
    EXPECT_GT(fread(said, 1, sizeof(said) - 1, child), 0U);
    EXPECT_EQ(WEXITSTATUS(pclose(child)), 2);
    EXPECT_THAT(std::string(said), HasSubstr(cat("LOCKSTEP_SPAWN_FD=\"", given, "\" does not name")));
  }
}

TEST_F(Spawn, ATypedErrorComesBackTyped) {
  const Status status = spawn("fail_typed", 3);
  EXPECT_THAT(status,
              StatusIs(Code::kTimeout, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("waited for rank 3"))));
  EXPECT_EQ(status.cause().rank, Rank{1});
  EXPECT_EQ(status.cause().op, "join");
  EXPECT_EQ(status.cause().missing, std::vector<Rank>{Rank{3}});
}

TEST_F(Spawn, AnExceptionComesBackWithItsText) {
  EXPECT_THAT(spawn("throw_something", 2), StatusIs(Code::kInternal, HasSubstr("the model has no layers")));
}

TEST_F(Spawn, ASignalIsNamed) {
  const Status status = spawn("die", 3);
  EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("was killed by SIGKILL (signal 9)")));
  EXPECT_THAT(status, FailureIs(Failure::kPeerDied));
  EXPECT_EQ(status.cause().peer, Rank{2});
}

TEST_F(Spawn, AnEarlyExitIsAFailure) {
  EXPECT_THAT(spawn("leave_early", 1), StatusIs(Code::kDisconnected, HasSubstr("exited with code 3")));
}

TEST_F(Spawn, TheFirstFailureIsNotOneThatBlamesAnother) {
  EXPECT_THAT(spawn("blame", 3), StatusIs(Code::kInvalid, HasSubstr("the true cause")));
}

TEST_F(Spawn, ARankThatIgnoresSigtermIsKilled) {
  EXPECT_THAT(spawn("ignore_sigterm", 2, {}, {.grace = 50ms}), StatusIs(Code::kInvalid, HasSubstr("over")));
}

TEST_F(Spawn, AtTheDeadlineEverythingIsEnded) {
  EXPECT_THAT(spawn("fail_typed", 1, {}, {.deadline = Clock::steady().in(50ms)}),
              StatusIs(Code::kTimeout, HasSubstr("ranks 0 had not ended")));
}

TEST_F(Spawn, WrongCallsAreErrors) {
  EXPECT_THAT(spawn("no_such_function", 1), StatusIs(Code::kInvalid, HasSubstr("no_such_function")));
  EXPECT_THAT(spawn("die", 0), StatusIs(Code::kInvalid, HasSubstr("world of 0")));
}

TEST_F(Spawn, IsRefusedWhereSigchldIsIgnored) {
  signal(SIGCHLD, SIG_IGN);
  const Status status = spawn("die", 3);
  signal(SIGCHLD, SIG_DFL);
  EXPECT_THAT(status, StatusIs(Code::kUnsupported, HasSubstr("ignores SIGCHLD")));
}

TEST_F(Spawn, ARankWhoseEndNobodyHasSeenHasNotSucceeded) {
  const std::filesystem::path folder = folder_.path();
  std::thread other([&] {
    await(folder / "ready");
    signal(SIGCHLD, SIG_IGN);
    touch(folder / "go");
  });
  const Status status = spawn("die_when_told", 1);
  other.join();
  signal(SIGCHLD, SIG_DFL);
  EXPECT_THAT(status, StatusIs(Code::kUnsupported, HasSubstr("how is not known")));
}

TEST_F(Spawn, WorksFromAProcessWithThreads) {
  Status status = Status::internal("not run");
  std::thread([&] { status = spawn("check_grants", 2); }).join();
  EXPECT_OK(status);
}

TEST(ForkRanks, IsRefusedWhenThereAreThreads) {
  std::atomic<bool> done = false;
  std::thread other([&] { done.wait(false); });
  EXPECT_THAT(fork_ranks(WorldSize{2}, [](const SpawnedRank&) { return Status(); }),
              StatusIs(Code::kUnsupported));
  done = true;
  done.notify_all();
  other.join();
}

}  // namespace

const std::map<std::string, RankFunction>& functions() {
  static const std::map<std::string, RankFunction> kAll = {{"note_arguments", note_arguments},
                                                           {"check_grants", check_grants},
                                                           {"fail_typed", fail_typed},
                                                           {"throw_something", throw_something},
                                                           {"die", die},
                                                           {"die_when_told", die_when_told},
                                                           {"leave_early", leave_early},
                                                           {"blame", blame},
                                                           {"ignore_sigterm", ignore_sigterm}};
  return kAll;
}

void set_spawner(const Spawner& made) { spawner = &made; }

}  // namespace lockstep::launch

int main(int argc, char** argv) {
  const lockstep::Spawner spawner(argc, argv, lockstep::launch::functions());
  lockstep::launch::set_spawner(spawner);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
