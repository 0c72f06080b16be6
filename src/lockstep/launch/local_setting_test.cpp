#include "lockstep/launch/local_setting.h"

#include "lockstep/base/process.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/temporary_folder.h"

namespace lockstep::launch {
namespace {

using testing::FailureIs;
using ::testing::HasSubstr;
using testing::IsOkAnd;
using testing::StatusIs;

Environment with(std::map<std::string, std::string, std::less<>> variables) {
  return Environment::parse(std::move(variables)).value();
}

TEST(CountGpus, FollowsTheVariable) {
  EXPECT_EQ(count_gpus(with({{"CUDA_VISIBLE_DEVICES", "0,2,5"}})), 3);
  EXPECT_EQ(count_gpus(with({{"CUDA_VISIBLE_DEVICES", "GPU-1234, 3"}})), 2);
  EXPECT_EQ(count_gpus(with({{"CUDA_VISIBLE_DEVICES", "0,-1,2"}})), 1) << "CUDA stops at an invalid one";
  EXPECT_EQ(count_gpus(with({{"CUDA_VISIBLE_DEVICES", ""}})), 0);
}

TEST(CountProcesses, NamesMeanWhatIsThere) {
  const Environment two_gpus = with({{"CUDA_VISIBLE_DEVICES", "0,1"}});
  const Environment no_gpu = with({{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_THAT(count_processes({.number = 7}, no_gpu), IsOkAnd(7));
  EXPECT_THAT(count_processes({.kind = ProcessCount::Kind::kCpu}, two_gpus), IsOkAnd(base::usable_cores()));
  EXPECT_THAT(count_processes({.kind = ProcessCount::Kind::kGpu}, two_gpus), IsOkAnd(2));
  EXPECT_THAT(count_processes({.kind = ProcessCount::Kind::kAuto}, two_gpus), IsOkAnd(2));
  EXPECT_THAT(count_processes({.kind = ProcessCount::Kind::kAuto}, no_gpu), IsOkAnd(base::usable_cores()));
  EXPECT_THAT(count_processes({.kind = ProcessCount::Kind::kGpu}, no_gpu),
              StatusIs(Code::kInvalid, HasSubstr("no GPU")));
}

TEST(ChooseSecret, OneHostAlwaysHasOne) {
  ASSERT_OK_AND_ASSIGN(const auto fresh, choose_secret({}, with({})));
  ASSERT_TRUE(fresh);
  EXPECT_FALSE(fresh->is_insecure());
  ASSERT_OK_AND_ASSIGN(const auto still, choose_secret({.insecure = true}, with({})));
  EXPECT_TRUE(still);
}

TEST(ChooseSecret, SeveralHostsNeedAFileOrSayInsecure) {
  EXPECT_THAT(choose_secret({.nnodes = 2}, with({})), FailureIs(Failure::kNoSecret));
  EXPECT_THAT(choose_secret({.nnodes = 2}, with({})),
              StatusIs(Code::kInvalid, HasSubstr("add --secret-file")));
  ASSERT_OK_AND_ASSIGN(const auto none, choose_secret({.nnodes = 2, .insecure = true}, with({})));
  EXPECT_FALSE(none);
  ASSERT_OK_AND_ASSIGN(const auto by_variable,
                       choose_secret({.nnodes = 2}, with({{"LOCKSTEP_INSECURE", "1"}})));
  EXPECT_FALSE(by_variable);
}

TEST(ChooseSecret, TheOptionIsStrongerThanTheVariable) {
  const testing::TemporaryFolder folder;
  const Secret mine = Secret::generate();
  ASSERT_OK(mine.to_new_file(folder.path("mine")));
  ASSERT_OK(Secret::generate().to_new_file(folder.path("other")));
  const Environment environment =
      with({{"LOCKSTEP_SECRET_FILE", folder.path("other")}, {"LOCKSTEP_INSECURE", "1"}});
  ASSERT_OK_AND_ASSIGN(const auto chosen,
                       choose_secret({.nnodes = 2, .secret_file = folder.path("mine")}, environment));
  ASSERT_TRUE(chosen);
  EXPECT_TRUE(std::ranges::equal(chosen->bytes(), mine.bytes()));
}

TEST(ChooseSecret, AFileThatTheEnvironmentNamesIsUsedAlsoWhereItSaysInsecure) {
  const testing::TemporaryFolder folder;
  const Secret mine = Secret::generate();
  ASSERT_OK(mine.to_new_file(folder.path("mine")));
  const Environment environment =
      with({{"LOCKSTEP_SECRET_FILE", folder.path("mine")}, {"LOCKSTEP_INSECURE", "1"}});
  for (const int nnodes : {1, 2}) {
    ASSERT_OK_AND_ASSIGN(const auto chosen, choose_secret({.nnodes = nnodes}, environment));
    ASSERT_TRUE(chosen);
    EXPECT_TRUE(std::ranges::equal(chosen->bytes(), mine.bytes()));
  }
  ASSERT_OK_AND_ASSIGN(const auto by_option, choose_secret({.nnodes = 2, .insecure = true}, environment));
  EXPECT_FALSE(by_option) << "arguments beat the environment";
}

TEST(LocalSetting, DividesTheCoresUnlessToldOtherwise) {
  ASSERT_OK_AND_ASSIGN(const LocalSetting one, make_local_setting({.nproc = {.number = 1}}, with({})));
  EXPECT_EQ(one.omp_num_threads, base::usable_cores());
  ASSERT_OK_AND_ASSIGN(const LocalSetting many, make_local_setting({.nproc = {.number = 1000}}, with({})));
  EXPECT_EQ(many.omp_num_threads, 1);
  ASSERT_OK_AND_ASSIGN(const LocalSetting set, make_local_setting({}, with({{"OMP_NUM_THREADS", "3"}})));
  EXPECT_FALSE(set.omp_num_threads);
  ASSERT_OK_AND_ASSIGN(const LocalSetting given,
                       make_local_setting({.env = {{"OMP_NUM_THREADS", "3"}}}, with({})));
  EXPECT_FALSE(given.omp_num_threads);
}

TEST(LocalSetting, WhatNamesLocalRanksMustNameSomeThatExist) {
  const StreamChoice third{.by_local_rank = {{2, {.out = true}}}};
  EXPECT_THAT(make_local_setting({.nproc = {.number = 2}, .local_ranks_filter = {0, 2}}, with({})),
              StatusIs(Code::kInvalid, HasSubstr("--local-ranks-filter names local rank 2")));
  EXPECT_THAT(make_local_setting({.nproc = {.number = 2}, .redirects = third}, with({})),
              StatusIs(Code::kInvalid, HasSubstr("--redirects names local rank 2")));
  EXPECT_THAT(make_local_setting({.nproc = {.number = 1}, .tee = third}, with({})),
              StatusIs(Code::kInvalid, HasSubstr("and this host has rank 0 only")));
  EXPECT_OK(make_local_setting({.nproc = {.number = 3}, .redirects = third, .tee = third}, with({})));
}

}  // namespace
}  // namespace lockstep::launch
