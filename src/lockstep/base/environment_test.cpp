#include "lockstep/base/environment.h"

#include <cstdlib>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::base {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

TEST(Environment, NothingSetIsNothingSaid) {
  ASSERT_OK_AND_ASSIGN(const Environment env, Environment::parse({}));
  EXPECT_EQ(env.rank, std::nullopt);
  EXPECT_EQ(env.master_addr, std::nullopt);
  EXPECT_EQ(env.slurm.procid, std::nullopt);
  EXPECT_FALSE(env.insecure);
  EXPECT_FALSE(env.torchelastic_agent_store);
  EXPECT_THAT(env.interfaces, IsEmpty());
  EXPECT_EQ(env.debug, std::nullopt);
}

TEST(Environment, AnEmptyVariableCountsAsNotSet) {
  ASSERT_OK_AND_ASSIGN(const Environment env, Environment::parse({{"RANK", ""},
                                                                  {"MASTER_ADDR", ""},
                                                                  {"LOCKSTEP_INSECURE", ""},
                                                                  {"LOCKSTEP_SOCKET_IFNAME", ""},
                                                                  {"GLOO_SOCKET_IFNAME", "eth1"}}));
  EXPECT_EQ(env.rank, std::nullopt);
  EXPECT_EQ(env.master_addr, std::nullopt);
  EXPECT_FALSE(env.insecure);
  EXPECT_THAT(env.interfaces, ElementsAre("eth1"));
}

TEST(Environment, ReadsEveryVariableIntoItsField) {
  ASSERT_OK_AND_ASSIGN(const Environment env, Environment::parse({{"RANK", "3"},
                                                                  {"WORLD_SIZE", "8"},
                                                                  {"LOCAL_RANK", "1"},
                                                                  {"LOCAL_WORLD_SIZE", "2"},
                                                                  {"MASTER_ADDR", "::1"},
                                                                  {"MASTER_PORT", "29500"},
                                                                  {"TORCHELASTIC_RUN_ID", "none"},
                                                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                                  {"TORCHELASTIC_RESTART_COUNT", "2"},
                                                                  {"TORCHELASTIC_ERROR_FILE", "/t/e"},
                                                                  {"LOCKSTEP_STORE", "h:1"},
                                                                  {"LOCKSTEP_STORE_FD", "5"},
                                                                  {"LOCKSTEP_JOB_ID", "j"},
                                                                  {"LOCKSTEP_EPOCH", "18446744073709551615"},
                                                                  {"LOCKSTEP_SECRET_FD", "6"},
                                                                  {"LOCKSTEP_SECRET_FILE", "/s"},
                                                                  {"LOCKSTEP_ERROR_FILE", "/e"},
                                                                  {"LOCKSTEP_PORT", "65535"},
                                                                  {"LOCKSTEP_INSECURE", "yes"},
                                                                  {"LOCKSTEP_SOCKET_IFNAME", "eth0, ib0"},
                                                                  {"GLOO_SOCKET_IFNAME", "lo"},
                                                                  {"LOCKSTEP_TIMEOUT", "250ms"},
                                                                  {"LOCKSTEP_LOG", "info,store=debug"},
                                                                  {"LOCKSTEP_DEBUG", "detail"},
                                                                  {"TORCH_DISTRIBUTED_DEBUG", "OFF"},
                                                                  {"JOB_COMPLETION_INDEX", "4"},
                                                                  {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}));
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "::1");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_EQ(env.torchelastic_run_id, "none");
  EXPECT_TRUE(env.torchelastic_agent_store);
  EXPECT_EQ(env.torchelastic_restart_count, 2);
  EXPECT_EQ(env.torchelastic_error_file, "/t/e");
  EXPECT_EQ(env.store_addr, "h:1");
  EXPECT_EQ(env.store_fd, 5);
  EXPECT_EQ(env.job_id, "j");
  EXPECT_EQ(env.epoch, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(env.secret_fd, 6);
  EXPECT_EQ(env.secret_file, "/s");
  EXPECT_EQ(env.error_file, "/e");
  EXPECT_EQ(env.store_port, 65535);
  EXPECT_TRUE(env.insecure);
  EXPECT_THAT(env.interfaces, ElementsAre("eth0", "ib0"));
  EXPECT_EQ(env.timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(env.log.level, LogLevel::kInfo);
  EXPECT_EQ(env.log.rank, Rank{3});
  EXPECT_EQ(env.debug, DebugLevel::kDetail);
  EXPECT_EQ(env.kubernetes.completion_index, 4);
  EXPECT_EQ(env.kubernetes.service_host, "10.0.0.1");
  EXPECT_EQ(env.all.at("LOCKSTEP_TIMEOUT"), "250ms");
}

TEST(Environment, UnderstandsTorchsDebugLevels) {
  ASSERT_OK_AND_ASSIGN(const Environment torch, Environment::parse({{"TORCH_DISTRIBUTED_DEBUG", "INFO"}}));
  EXPECT_EQ(torch.debug, DebugLevel::kInfo);
  ASSERT_OK_AND_ASSIGN(const Environment off, Environment::parse({{"LOCKSTEP_DEBUG", "Off"}}));
  EXPECT_EQ(off.debug, DebugLevel::kOff);
  EXPECT_EQ(name_of(DebugLevel::kDetail), "detail");
}

TEST(Environment, ReadsTheSchedulers) {
  ASSERT_OK_AND_ASSIGN(const Environment env, Environment::parse({{"SLURM_PROCID", "5"},
                                                                  {"SLURM_NPROCS", "6"},
                                                                  {"SLURM_LOCALID", "1"},
                                                                  {"SLURM_NODEID", "2"},
                                                                  {"SLURM_TASKS_PER_NODE", "9"},
                                                                  {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
                                                                  {"SLURM_NODELIST", "c"},
                                                                  {"SLURM_JOB_NODELIST", "b"},
                                                                  {"SLURM_STEP_NODELIST", "a"},
                                                                  {"SLURM_JOB_ID", "77"},
                                                                  {"SLURM_STEP_ID", "0"},
                                                                  {"OMPI_COMM_WORLD_RANK", "1"},
                                                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                                                  {"PMIX_NAMESPACE", "n@1"},
                                                                  {"PMI_RANK", "7"},
                                                                  {"PMI_SIZE", "9"},
                                                                  {"MPI_LOCALRANKID", "3"},
                                                                  {"MPI_LOCALNRANKS", "4"}}));
  EXPECT_EQ(env.slurm.procid, 5);
  EXPECT_EQ(env.slurm.ntasks, 6);
  EXPECT_EQ(env.slurm.localid, 1);
  EXPECT_EQ(env.slurm.nodeid, 2);
  EXPECT_EQ(env.slurm.tasks_per_node, "2(x3)") << "the step's own counts come before the job's";
  EXPECT_EQ(env.slurm.nodelist, "a") << "the step's own nodes come before the job's";
  EXPECT_EQ(env.slurm.job_id, "77");
  EXPECT_EQ(env.slurm.step_id, "0");
  EXPECT_EQ(env.open_mpi.rank, 1);
  EXPECT_EQ(env.open_mpi.size, 2);
  EXPECT_EQ(env.open_mpi.local_rank, 0);
  EXPECT_EQ(env.open_mpi.local_size, 1);
  EXPECT_EQ(env.open_mpi.job, "n@1");
  EXPECT_EQ(env.pmi.rank, 7);
  EXPECT_EQ(env.pmi.size, 9);
  EXPECT_EQ(env.pmi.local_rank, 3);
  EXPECT_EQ(env.pmi.local_size, 4);
}

TEST(Environment, WhatDoesNotParseIsNamedWithItsValueAndWhatWasExpected) {
  struct Case {
    const char* name;
    const char* value;
    const char* expected;
  };
  const Case kCases[] = {
      {"RANK", "two", "a whole number from 0 to"},
      {"RANK", "-1", "a whole number from 0 to"},
      {"RANK", "1 ", "a whole number from 0 to"},
      {"RANK", "99999999999", "a whole number from 0 to 2147483647"},
      {"WORLD_SIZE", "0", "a whole number from 1 to"},
      {"LOCAL_RANK", "0x1", "a whole number"},
      {"LOCAL_WORLD_SIZE", "1.5", "a whole number"},
      {"MASTER_PORT", "0", "a whole number from 1 to 65535"},
      {"MASTER_PORT", "65536", "a whole number from 1 to 65535"},
      {"TORCHELASTIC_USE_AGENT_STORE", "maybe", "true or false"},
      {"TORCHELASTIC_RESTART_COUNT", "x", "a whole number"},
      {"LOCKSTEP_STORE_FD", "-1", "a whole number from 0"},
      {"LOCKSTEP_SECRET_FD", "a", "a whole number from 0"},
      {"LOCKSTEP_EPOCH", "-1", "a whole number from 0 to 18446744073709551615"},
      {"LOCKSTEP_PORT", "http", "a whole number from 1 to 65535"},
      {"LOCKSTEP_INSECURE", "perhaps", "yes or no"},
      {"LOCKSTEP_SOCKET_IFNAME", "eth0,,eth1", "interface names separated by commas"},
      {"LOCKSTEP_TIMEOUT", "soon", "a time above zero"},
      {"LOCKSTEP_TIMEOUT", "0", "a time above zero"},
      {"LOCKSTEP_LOG", "loud", "a level"},
      {"LOCKSTEP_DEBUG", "much", "off, info or detail"},
      {"TORCH_DISTRIBUTED_DEBUG", "2", "off, info or detail"},
      {"SLURM_PROCID", "n", "a whole number"},
      {"SLURM_NTASKS", "0", "a whole number from 1"},
      {"OMPI_COMM_WORLD_SIZE", "", nullptr},
      {"OMPI_COMM_WORLD_RANK", "r", "a whole number"},
      {"PMI_SIZE", "-4", "a whole number"},
      {"MPI_LOCALNRANKS", "0", "a whole number from 1"},
      {"JOB_COMPLETION_INDEX", "\x1b[31m", "a whole number"},
  };
  for (const Case& c : kCases) {
    const auto result = Environment::parse({{c.name, c.value}});
    if (c.expected == nullptr) {
      EXPECT_OK(result.status()) << c.name;
      continue;
    }
    EXPECT_THAT(result.status(), StatusIs(Code::kInvalid, AllOf(HasSubstr(cat(c.name, "=", quoted(c.value))),
                                                                HasSubstr(c.expected))));
  }
}

TEST(Environment, ReadsTheProcessItself) {
  ASSERT_EQ(::setenv("LOCKSTEP_JOB_ID", "from the process", 1), 0);
  const auto result = Environment::read();
  ASSERT_EQ(::unsetenv("LOCKSTEP_JOB_ID"), 0);
  ASSERT_OK(result);
  EXPECT_EQ(result->job_id, "from the process");
}

}  // namespace
}  // namespace lockstep::base
