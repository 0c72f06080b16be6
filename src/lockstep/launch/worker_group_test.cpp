// The end of a group that takes its time, on a clock of the test's own. What ends well is in tests/world.
#include "lockstep/launch/worker_group.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "lockstep/base/text.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class WorkerGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    shown_ = UniqueFd(ends[0]);
    console_end_ = UniqueFd(ends[1]);
    auto guard = Guard::start();
    auto poller = Poller::make();
    ASSERT_OK(guard);
    ASSERT_OK(poller);
    guard_.emplace(*std::move(guard));
    poller_.emplace(*std::move(poller));
    console_.emplace(Console::Options{.out_fd = console_end_.get(), .error_fd = console_end_.get()},
                     *poller_);
    group_.emplace(WorkerGroup::Setting{
        .poller = *poller_, .console = *console_, .guard = *guard_, .clock = clock_, .grace = kGrace});
    WorkerPlan plan{.child = {.path = "/bin/sleep", .argv = {"sleep", "1000"}}};
    std::vector<WorkerPlan> plans;
    plans.push_back(std::move(plan));
    ASSERT_OK(group_->start(std::move(plans)));
  }

  // Until the rank's process has ended; its status is left for the group to take, or not.
  void await_end() {
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(group_->state(0).pid), &info, WEXITED | WNOWAIT), 0);
  }

  // Lets the group read what is left of the output. Whether it is gone then.
  bool drain() {
    for (int i = 0; i < 10'000 && !group_->gone(); ++i) {
      EXPECT_OK(poller_->wait(clock_.in(1ms)));
      group_->tick();
    }
    return group_->gone();
  }

  std::string shown() {
    console_->flush();
    std::array<char, 4096> text;
    const ssize_t got = read(shown_.get(), text.data(), text.size());
    return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }

  static constexpr Duration kGrace = 30s;
  testing::FakeClock clock_;
  UniqueFd shown_;
  UniqueFd console_end_;
  std::optional<Guard> guard_;
  std::optional<Poller> poller_;
  std::optional<Console> console_;
  std::optional<WorkerGroup> group_;
};

// As when the launcher itself was stopped meanwhile.
TEST_F(WorkerGroupTest, AnEndThatIsSeenLongAfterTheGraceIsAnEnd) {
  group_->stop(SIGTERM);
  await_end();
  clock_.advance(kGrace + 40s);
  group_->reap();
  group_->tick();
  EXPECT_TRUE(drain());
  EXPECT_EQ(shown(), "");
  EXPECT_TRUE(group_->state(0).ended());
}

// The kernel lets no test make one: here nobody tells the group of the end.
TEST_F(WorkerGroupTest, ARankThatCannotBeKilledIsGivenUp) {
  const pid_t pid = group_->state(0).pid;
  group_->stop(SIGTERM);
  clock_.advance(kGrace);
  group_->tick();  // SIGKILL
  await_end();
  for (int i = 0; i < 2; ++i) {  // once for the rank itself, and once for all that is left
    clock_.advance(4900ms);
    group_->tick();
    EXPECT_EQ(shown(), "");
    EXPECT_LE(group_->wake_at().remaining(), 100ms);
    clock_.advance(100ms);
    group_->tick();
  }
  EXPECT_TRUE(drain());
  EXPECT_THAT(shown(), HasSubstr(cat("process ", pid, " and 0 more cannot be killed")));
  EXPECT_FALSE(group_->state(0).ended());
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

}  // namespace
}  // namespace lockstep::launch
