#include "lockstep/store/local_secret.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/bytes.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/thread_limit.h"

namespace lockstep::store {
namespace {

using std::chrono::seconds;
using testing::FailureIs;
using ::testing::HasSubstr;
using testing::StatusIs;

// A port that stays this test's own while nobody listens on it.
class LocalSecretTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(held_, base::hold_port(*base::SocketAddress::parse("127.0.0.1", 0)));
    ASSERT_OK_AND_ASSIGN(store_, base::local_address(held_.get()));
    name_ = local_secret_name(store_);
  }
  Result<Secret> fetch(Duration time = seconds(20)) {
    return fetch_local_secret(name_, store_, Clock::steady().in(time));
  }

  base::UniqueFd held_;
  base::SocketAddress store_;
  std::string name_;
};

TEST_F(LocalSecretTest, TheSecretComesOver) {
  const Secret secret = Secret::generate();
  ASSERT_OK_AND_ASSIGN(const auto server, LocalSecretServer::start(name_, secret));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const Secret fetched, fetch());
    EXPECT_EQ(base::hex(fetched.bytes()), base::hex(secret.bytes()));
  }
}

TEST_F(LocalSecretTest, WhoComesBeforeTheServerWaitsForIt) {
  const Secret secret = Secret::generate();
  Result<Secret> fetched = Status::internal("not fetched");
  std::thread early([&] { fetched = fetch(); });
  ASSERT_OK_AND_ASSIGN(const auto server, LocalSecretServer::start(name_, secret));
  early.join();
  ASSERT_OK(fetched);
  EXPECT_EQ(base::hex(fetched->bytes()), base::hex(secret.bytes()));
}

TEST_F(LocalSecretTest, NobodyThereIsATimeout) {
  EXPECT_THAT(fetch(std::chrono::milliseconds(50)), StatusIs(Code::kTimeout, HasSubstr(store_.text())));
}

TEST_F(LocalSecretTest, AStoreThatHandsNoneOutIsToldApart) {
  ASSERT_EQ(::listen(held_.get(), 5), 0);
  EXPECT_THAT(fetch(), FailureIs(Failure::kNoSecret));
}

TEST_F(LocalSecretTest, OnlyOneHandsOut) {
  ASSERT_OK_AND_ASSIGN(const auto server, LocalSecretServer::start(name_, Secret::generate()));
  EXPECT_THAT(LocalSecretServer::start(name_, Secret::generate()), FailureIs(Failure::kPortTaken));
}

TEST_F(LocalSecretTest, WithoutAThreadItSaysSoAndTheNameIsFreeAgain) {
  {
    const lockstep::testing::NoMoreThreads limit;
    EXPECT_THAT(LocalSecretServer::start(name_, Secret::generate()).status().message(),
                HasSubstr("lockstep-secret cannot be started"));
  }
  EXPECT_OK(LocalSecretServer::start(name_, Secret::generate()));
}

TEST_F(LocalSecretTest, TheNameIsFreeAgainAfterwards) {
  for (int i = 0; i < 3; ++i) ASSERT_OK(LocalSecretServer::start(name_, Secret::generate()));
}

TEST_F(LocalSecretTest, AForkedChildDoesNotKeepTheNameAndMayDestroyItsCopy) {
  auto server = LocalSecretServer::start(name_, Secret::generate());
  ASSERT_OK(server);
  int ends[2], started[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::pipe(started), 0);
  const pid_t child = ::fork();
  char byte = 0;
  if (child == 0) {
    server = Status::internal("destroyed");
    ::close(ends[1]);
    const bool told = ::write(started[1], &byte, 1) == 1;
    ::_exit(told && ::read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  ::close(ends[0]);
  ASSERT_EQ(::read(started[0], &byte, 1), 1);
  EXPECT_OK(fetch()) << "the child has not closed the parent's";
  server = Status::internal("destroyed");
  EXPECT_OK(LocalSecretServer::start(name_, Secret::generate())) << "the child still lives";
  ::close(ends[1]);
  ::close(started[0]);
  ::close(started[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::store
