#include "lockstep/launch/worker_environment.h"

#include <gmock/gmock.h>

namespace lockstep::launch {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

JobSetting job() {
  return {.job_id = "exp-1a2b",
          .run_id = "exp",
          .epoch = 2,
          .max_restarts = 3,
          .master = {"10.0.0.1", 29501},
          .store = {"10.0.0.1", 29502}};
}

TEST(RankVariables, AreThoseOfTorchrunAndOurs) {
  const auto places = place_ranks({{"a", 2, "trainer"}, {"b", 1, "trainer"}});
  const Variables variables = rank_variables(
      job(), places[2], {.secret_fd = 7, .error_file = "/e", .torch_error_file = "/t", .omp_num_threads = 4});
  const Variables expected = {
      {"RANK", "2"},
      {"WORLD_SIZE", "3"},
      {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "1"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_NAME", "trainer"},
      {"ROLE_RANK", "2"},
      {"ROLE_WORLD_SIZE", "3"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "29501"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RUN_ID", "exp"},
      {"TORCHELASTIC_ERROR_FILE", "/t"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"LOCKSTEP_STORE", "10.0.0.1:29502"},
      {"LOCKSTEP_JOB_ID", "exp-1a2b"},
      {"LOCKSTEP_EPOCH", "2"},
      {"LOCKSTEP_SECRET_FD", "7"},
      {"LOCKSTEP_ERROR_FILE", "/e"},
      {"OMP_NUM_THREADS", "4"},
  };
  EXPECT_EQ(variables, expected);
  for (const auto& [name, value] : variables) {
    EXPECT_TRUE(name == "OMP_NUM_THREADS" || is_launcher_variable(name)) << name;
  }
}

TEST(RankVariables, OnlyTheRankThatServesGetsTheListeningSocket) {
  const auto places = place_ranks({{"a", 2}});
  EXPECT_THAT(rank_variables(job(), places[0], {.store_fd = 5}), Contains(Pair("LOCKSTEP_STORE_FD", "5")));
  EXPECT_THAT(rank_variables(job(), places[1], {}), Not(Contains(Key("LOCKSTEP_STORE_FD"))));
}

TEST(RankVariables, AnInsecureJobSaysSoAndHasNoSecret) {
  JobSetting insecure = job();
  insecure.insecure = true;
  const Variables variables = rank_variables(insecure, place_ranks({{"a", 1}})[0], {});
  EXPECT_THAT(variables, Contains(Pair("LOCKSTEP_INSECURE", "1")));
  EXPECT_THAT(variables, Not(Contains(Key("LOCKSTEP_SECRET_FD"))));
}

TEST(WorkerEnvironment, LaterOnesWinAndNothingOfAnOuterLauncherIsLeft) {
  const Variables inherited = {{"PATH", "/bin"},
                               {"A", "old"},
                               {"LOCKSTEP_STORE_FD", "3"},
                               {"LOCKSTEP_SECRET_FILE", "/s"},
                               {"RANK", "9"}};
  const Variables environment = worker_environment(inherited, {{"A", "new"}, {"B", "1"}}, {{"RANK", "0"}});
  EXPECT_EQ(environment, (Variables{{"PATH", "/bin"}, {"A", "new"}, {"B", "1"}, {"RANK", "0"}}));
}

}  // namespace
}  // namespace lockstep::launch
