#include "lockstep/launch/worker_plan.h"

#include "lockstep/testing/status_matchers.h"

namespace lockstep::launch {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class WorkerPlans : public ::testing::Test {
 protected:
  WorkerPlans() {
    setting_.program = {.path = "/bin/train", .argv = {"train", "--fast"}};
    setting_.nproc = 2;
    setting_.cpus = {{0, 1}, {2, 3}};
    round_.job = {
        .job_id = "exp-1", .run_id = "exp", .epoch = 3, .master = {"10.0.0.1", 1}, .store = {"10.0.0.1", 2}};
    round_.nodes = {{.host = "a", .nproc = 1}, {.host = "b", .nproc = 2}};
    round_.node = 1;
  }
  std::vector<WorkerPlan> plan() {
    return plan_workers({.options = options_,
                         .environment = environment_,
                         .setting = setting_,
                         .scratch = "/scratch",
                         .coloured = coloured_,
                         .null_fd = 8,
                         .secret_fd = 9},
                        round_);
  }

  RunOptions options_{.command = {"train", "--fast"}};
  Environment environment_;
  LocalSetting setting_;
  Round round_;
  Streams coloured_;
};

TEST_F(WorkerPlans, AreThoseOfThisHost) {
  environment_.all = {{"HOME", "/home/u"}};
  options_.env = {{"MINE", "1"}};
  const auto plans = plan();
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_EQ(plans[0].place.rank, Rank{1});
  EXPECT_EQ(plans[1].place.rank, Rank{2});
  const ChildSpec& child = plans[1].child;
  EXPECT_EQ(child.path, "/bin/train");
  EXPECT_THAT(child.argv, ElementsAre("train", "--fast"));
  EXPECT_THAT(child.cpus, ElementsAre(2, 3));
  EXPECT_THAT(child.inherited, ElementsAre(9));
  EXPECT_EQ(child.stdin_fd, 8);
  for (const auto& expected : {std::pair("HOME", "/home/u"), std::pair("MINE", "1"), std::pair("RANK", "2"),
                               std::pair("LOCAL_RANK", "1"), std::pair("LOCKSTEP_SECRET_FD", "9"),
                               std::pair("LOCKSTEP_ERROR_FILE", "/scratch/attempt_3/2/error.json")}) {
    EXPECT_THAT(child.environment, Contains(Pair(expected.first, expected.second)));
  }
  EXPECT_THAT(child.environment, Not(Contains(Key("LOCKSTEP_STORE_FD"))));
}

TEST_F(WorkerPlans, LogsHaveAFolderForEachJobAttemptAndRank) {
  options_.log_dir = "/logs";
  options_.redirects.by_local_rank = {{0, {.out = true}}};
  options_.tee.by_local_rank = {{1, {.out = true, .error = true}}};
  const auto plans = plan();
  EXPECT_EQ(plans[0].out.log_path, "/logs/exp-1/attempt_3/1/stdout.log");
  EXPECT_FALSE(plans[0].out.shown);
  EXPECT_EQ(plans[0].error.log_path, "");
  EXPECT_TRUE(plans[0].error.shown);
  EXPECT_EQ(plans[1].error.log_path, "/logs/exp-1/attempt_3/2/stderr.log");
  EXPECT_TRUE(plans[1].error.shown);
  EXPECT_EQ(plans[1].torch_error_file, "/logs/exp-1/attempt_3/2/torch_error.json");
}

TEST_F(WorkerPlans, TheFilterHidesButDoesNotStopLogs) {
  options_.log_dir = "/logs";
  options_.tee.all = {.out = true, .error = true};
  options_.local_ranks_filter = {0};
  const auto plans = plan();
  EXPECT_TRUE(plans[0].out.shown);
  EXPECT_FALSE(plans[1].out.shown);
  EXPECT_NE(plans[1].out.log_path, "");
}

TEST_F(WorkerPlans, ColoursAreForTheStreamsThatTakeThem) {
  coloured_ = {.error = true};
  const auto plans = plan();
  EXPECT_EQ(plans[0].out.prefix, "[rank 1] ");
  EXPECT_NE(plans[0].error.prefix, "[rank 1] ");
  EXPECT_NE(plans[0].error.prefix, plans[1].error.prefix);
}

}  // namespace
}  // namespace lockstep::launch
