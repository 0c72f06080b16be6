#include "lockstep/store/job_environment.h"

#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FailureIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::StatusIs;
using Hosts = StorePlace::Hosts;
using Server = StorePlace::Server;
using Variables = std::map<std::string, std::string, std::less<>>;

Result<JobEnvironment> job(Variables variables) {
  auto env = Environment::parse(std::move(variables));
  if (!env.ok()) return env.status();
  return job_environment(*env);
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables.insert_or_assign(name, value);
  return variables;
}

StorePlace served_by_rank_zero(std::string host, std::uint16_t port, Hosts hosts = Hosts::kUnknown) {
  return {{std::move(host), port}, Server::kRankZero, hosts};
}

const Variables kByHand = {
    {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4,3,1"},
                          {"SLURM_JOB_NODELIST", "gpu[08-10]"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "prterun-a-1@1"}};
const Variables kPmi = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

TEST(JobEnvironment, NothingSetIsAWorldOfOne) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment alone, job({{"PATH", "/bin"}, {"LOCAL_RANK", "0"}}));
  EXPECT_EQ(alone.source, JobSource::kNone);
  EXPECT_EQ(alone.rank, std::nullopt);
  EXPECT_EQ(alone.store, std::nullopt);
  EXPECT_THAT(alone.found, IsEmpty());
  EXPECT_THAT(alone.missing, IsEmpty());
}

TEST(JobEnvironment, TheFourVariablesByHand) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment hand, job(kByHand));
  EXPECT_EQ(hand.source, JobSource::kVariables);
  EXPECT_EQ(hand.rank, Rank{2});
  EXPECT_EQ(hand.world_size, WorldSize{4});
  EXPECT_EQ(hand.store, served_by_rank_zero("node7", 29500));
  EXPECT_EQ(hand.job_id, "default");
  EXPECT_EQ(hand.epoch, 0U);
  EXPECT_THAT(hand.missing, IsEmpty());
}

TEST(JobEnvironment, EverySubsetOfTheFourNamesWhatIsMissing) {
  for (unsigned mask = 1; mask < 15; ++mask) {
    Variables some;
    std::vector<std::string> missing;
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
      const auto bit = static_cast<unsigned>(std::distance(kByHand.begin(), kByHand.find(name)));
      if ((mask >> bit & 1U) != 0)
        some.emplace(name, kByHand.at(name));
      else
        missing.emplace_back(name);
    }
    ASSERT_OK_AND_ASSIGN(const JobEnvironment partial, job(some));
    EXPECT_EQ(partial.missing, missing);
    EXPECT_THAT(missing_variables(partial, partial.missing), FailureIs(Failure::kMissingVariable));
  }
}

TEST(JobEnvironment, TheErrorSaysWhatIsSetAndWhatIsNot) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment partial, job({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
  EXPECT_THAT(missing_variables(partial, partial.missing),
              StatusIs(Code::kInvalid, AllOf(HasSubstr("RANK, WORLD_SIZE are set"),
                                             HasSubstr("but MASTER_ADDR, MASTER_PORT are not"))));
}

TEST(JobEnvironment, OurLauncher) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment launched,
                       job(with(kByHand, {{"LOCKSTEP_STORE", "[::1]:4000"},
                                          {"LOCKSTEP_JOB_ID", "j7"},
                                          {"LOCKSTEP_EPOCH", "3"},
                                          {"LOCAL_RANK", "0"},
                                          {"LOCAL_WORLD_SIZE", "4"},
                                          {"TORCHELASTIC_RUN_ID", "run"},
                                          {"TORCHELASTIC_RESTART_COUNT", "9"}})));
  EXPECT_EQ(launched.source, JobSource::kLauncher);
  EXPECT_EQ(launched.store, (StorePlace{{"::1", 4000}, Server::kElsewhere, Hosts::kOne}));
  EXPECT_EQ(launched.job_id, "j7");
  EXPECT_EQ(launched.epoch, 3U);
  EXPECT_EQ(launched.local_rank, Rank{0});
  EXPECT_EQ(launched.local_size, WorldSize{4});
}

TEST(JobEnvironment, AStoreWithoutARankIsIncomplete) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment partial, job({{"LOCKSTEP_STORE", "h:1"}}));
  EXPECT_THAT(partial.missing, ElementsAre("RANK", "WORLD_SIZE"));
}

TEST(JobEnvironment, AStoreThatIsNoEndpointIsNamed) {
  EXPECT_THAT(job(with(kByHand, {{"LOCKSTEP_STORE", "nowhere"}})),
              StatusIs(Code::kInvalid, HasSubstr("LOCKSTEP_STORE")));
}

TEST(JobEnvironment, TorchrunsAgentKeepsMasterPortForItself) {
  const Variables torchrun = with(kByHand, {{"TORCHELASTIC_RUN_ID", "run"},
                                            {"TORCHELASTIC_RESTART_COUNT", "1"},
                                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  ASSERT_OK_AND_ASSIGN(const JobEnvironment agent, job(torchrun));
  EXPECT_EQ(agent.source, JobSource::kTorchrun);
  EXPECT_EQ(agent.store, served_by_rank_zero("node7", 29501));
  EXPECT_EQ(agent.job_id, "run");
  EXPECT_EQ(agent.epoch, 1U);

  ASSERT_OK_AND_ASSIGN(const JobEnvironment chosen, job(with(torchrun, {{"LOCKSTEP_PORT", "4000"}})));
  EXPECT_EQ(chosen.store, served_by_rank_zero("node7", 4000));

  ASSERT_OK_AND_ASSIGN(const JobEnvironment free,
                       job(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})));
  EXPECT_EQ(free.store, served_by_rank_zero("node7", 29500));

  EXPECT_THAT(job(with(torchrun, {{"MASTER_PORT", "65535"}})),
              StatusIs(Code::kInvalid, HasSubstr("export LOCKSTEP_PORT=")));
}

TEST(JobEnvironment, AllRanksOnOneHostMeetOnLoopback) {
  const Variables one_host = with(kByHand, {{"LOCAL_WORLD_SIZE", "4"}});
  const std::pair<const char*, const char*> kCases[] = {
      {"node7", "127.0.0.1"}, {"10.1.2.3", "127.0.0.1"}, {"localhost", "127.0.0.1"},
      {"::1", "::1"},         {"[::1]", "::1"},          {"127.0.0.9", "127.0.0.9"}};
  for (const auto& [master, host] : kCases) {
    ASSERT_OK_AND_ASSIGN(const JobEnvironment here, job(with(one_host, {{"MASTER_ADDR", master}})));
    EXPECT_EQ(here.store, served_by_rank_zero(host, 29500, Hosts::kOne)) << master;
  }
  ASSERT_OK_AND_ASSIGN(const JobEnvironment two_hosts, job(with(kByHand, {{"LOCAL_WORLD_SIZE", "2"}})));
  EXPECT_EQ(two_hosts.store, served_by_rank_zero("node7", 29500, Hosts::kSeveral));
}

TEST(JobEnvironment, IPv6AsMasterAddr) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment plain, job(with(kByHand, {{"MASTER_ADDR", "fd00::7"}})));
  EXPECT_EQ(plain.store, served_by_rank_zero("fd00::7", 29500));
  ASSERT_OK_AND_ASSIGN(const JobEnvironment brackets, job(with(kByHand, {{"MASTER_ADDR", "[fd00::7]"}})));
  EXPECT_EQ(brackets.store, plain.store);
}

TEST(JobEnvironment, Slurm) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment slurm, job(kSlurm));
  EXPECT_EQ(slurm.source, JobSource::kSlurm);
  EXPECT_EQ(slurm.rank, Rank{5});
  EXPECT_EQ(slurm.world_size, WorldSize{8});
  EXPECT_EQ(slurm.local_rank, Rank{1});
  EXPECT_EQ(slurm.local_size, WorldSize{3});
  EXPECT_EQ(slurm.job_id, "slurm-77.2");
  ASSERT_TRUE(slurm.store);
  EXPECT_EQ(slurm.store->endpoint.host, "gpu08");
  EXPECT_GE(slurm.store->endpoint.port, 20000);
  EXPECT_LT(slurm.store->endpoint.port, 30000);
  EXPECT_THAT(slurm.missing, IsEmpty());

  ASSERT_OK_AND_ASSIGN(const JobEnvironment other, job(with(kSlurm, {{"SLURM_STEP_ID", "3"}})));
  EXPECT_NE(other.store->endpoint.port, slurm.store->endpoint.port) << "two steps of one job do not meet";
}

TEST(JobEnvironment, SlurmNeedsNothingButItsThreeVariables) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment slurm,
                       job({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "a,b"}}));
  EXPECT_EQ(slurm.store, served_by_rank_zero("a", kDefaultStorePort));
  EXPECT_EQ(slurm.local_rank, std::nullopt) << "found by host, after the join";
}

TEST(JobEnvironment, SlurmOnOneNodeMeetsOnLoopback) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment slurm, job(with(kSlurm, {{"SLURM_JOB_NODELIST", "gpu08"}})));
  EXPECT_EQ(slurm.store->endpoint.host, "127.0.0.1");
  EXPECT_EQ(slurm.store->hosts, Hosts::kOne);
}

TEST(JobEnvironment, SlurmIsOverruledByTheMasterThatIsNamed) {
  ASSERT_OK_AND_ASSIGN(
      const JobEnvironment slurm,
      job(with(kSlurm, {{"MASTER_ADDR", "login"}, {"MASTER_PORT", "4000"}, {"WORLD_SIZE", "8"}})));
  EXPECT_EQ(slurm.source, JobSource::kSlurm);
  EXPECT_EQ(slurm.rank, Rank{5});
  EXPECT_EQ(slurm.store, served_by_rank_zero("login", 4000, Hosts::kSeveral));
}

TEST(JobEnvironment, SlurmAndVariablesThatDisagreeAreRefused) {
  EXPECT_THAT(job(with(kSlurm, {{"WORLD_SIZE", "16"}})),
              StatusIs(Code::kInvalid, AllOf(HasSubstr("WORLD_SIZE=16"), HasSubstr("SLURM_NTASKS=8"))));
  EXPECT_THAT(job(with(kSlurm, {{"RANK", "1"}})),
              StatusIs(Code::kInvalid, AllOf(HasSubstr("RANK=1"), HasSubstr("SLURM_PROCID=5"))));
}

TEST(JobEnvironment, TheFourVariablesInsideSlurmNeedNoSlurm) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment hand,
                       job(with(kSlurm, with(kByHand, {{"SLURM_JOB_NODELIST", "[["}}))));
  EXPECT_EQ(hand.source, JobSource::kVariables);
  EXPECT_EQ(hand.rank, Rank{2});
}

TEST(JobEnvironment, ABadNodelistIsAnError) {
  EXPECT_THAT(job(with(kSlurm, {{"SLURM_JOB_NODELIST", "gpu[08-"}})),
              StatusIs(Code::kInvalid, HasSubstr("Slurm node list")));
  Variables without = kSlurm;
  without.erase("SLURM_JOB_NODELIST");
  ASSERT_OK_AND_ASSIGN(const JobEnvironment partial, job(without));
  EXPECT_THAT(partial.missing, ElementsAre("SLURM_JOB_NODELIST"));
}

TEST(JobEnvironment, OpenMpi) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment here, job(with(kSlurm, kOpenMpi)));
  EXPECT_EQ(here.source, JobSource::kOpenMpi) << "mpirun inside a Slurm allocation";
  EXPECT_EQ(here.rank, Rank{1});
  EXPECT_EQ(here.world_size, WorldSize{2});
  EXPECT_EQ(here.local_rank, Rank{1});
  EXPECT_EQ(here.job_id, "openmpi-prterun-a-1@1");
  EXPECT_EQ(here.store->endpoint.host, "127.0.0.1");
  EXPECT_EQ(here.store->hosts, Hosts::kOne);

  ASSERT_OK_AND_ASSIGN(const JobEnvironment hosts, job(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}})));
  EXPECT_THAT(hosts.missing, ElementsAre("MASTER_ADDR"));
  ASSERT_OK_AND_ASSIGN(const JobEnvironment named,
                       job(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}})));
  EXPECT_EQ(named.store->endpoint.host, "node1");
  EXPECT_EQ(named.store->endpoint.port, here.store->endpoint.port);
}

TEST(JobEnvironment, Pmi) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment hosts, job(kPmi));
  EXPECT_EQ(hosts.source, JobSource::kPmi);
  EXPECT_EQ(hosts.rank, Rank{3});
  EXPECT_THAT(hosts.missing, ElementsAre("MASTER_ADDR"));
  ASSERT_OK_AND_ASSIGN(const JobEnvironment here, job(with(kPmi, {{"MPI_LOCALNRANKS", "4"}})));
  EXPECT_EQ(here.store, served_by_rank_zero("127.0.0.1", kDefaultStorePort, Hosts::kOne));
  ASSERT_OK_AND_ASSIGN(const JobEnvironment inside, job(with(kSlurm, kPmi)));
  EXPECT_EQ(inside.source, JobSource::kPmi) << "mpiexec inside a Slurm allocation";
  ASSERT_OK_AND_ASSIGN(const JobEnvironment srun, job(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}})));
  EXPECT_EQ(srun.source, JobSource::kSlurm) << "srun --mpi=pmi2 sets both alike";
}

TEST(JobEnvironment, ARankAboveZeroWithoutItsSizeIsNoWorldOfOne) {
  const std::pair<std::string, std::string> cases[] = {{"SLURM_PROCID", "SLURM_NTASKS"},
                                                       {"PMI_RANK", "PMI_SIZE"},
                                                       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}};
  for (const auto& [rank, size] : cases) {
    ASSERT_OK_AND_ASSIGN(const JobEnvironment partial, job({{rank, "3"}, {"SLURM_JOB_NODELIST", "gpu08"}}));
    EXPECT_THAT(missing_variables(partial, partial.missing),
                StatusIs(Code::kInvalid, AllOf(HasSubstr(rank + " is set"), HasSubstr("but " + size))));
    EXPECT_THAT(partial.missing, Contains(size));
    ASSERT_OK_AND_ASSIGN(const JobEnvironment told,
                         job({{rank, "3"}, {"SLURM_JOB_NODELIST", "gpu08"}, {"WORLD_SIZE", "4"}}));
    EXPECT_EQ(told.rank, Rank{3});
    EXPECT_EQ(told.world_size, WorldSize{4});
    EXPECT_THAT(told.missing, Not(Contains(size)));
    ASSERT_OK_AND_ASSIGN(const JobEnvironment shell, job({{rank, "0"}, {"SLURM_JOB_NODELIST", "gpu08"}}));
    EXPECT_EQ(shell.source, JobSource::kNone) << "salloc and sbatch";
  }
}

TEST(JobEnvironment, KubernetesIndexedJob) {
  ASSERT_OK_AND_ASSIGN(const JobEnvironment partial, job({{"JOB_COMPLETION_INDEX", "2"}}));
  EXPECT_EQ(partial.source, JobSource::kKubernetes);
  EXPECT_THAT(partial.missing, ElementsAre("WORLD_SIZE", "MASTER_ADDR"));
  EXPECT_THAT(missing_variables(partial, partial.missing),
              StatusIs(Code::kInvalid, AllOf(HasSubstr("JOB_COMPLETION_INDEX is set"), HasSubstr("pod 0"))));
  ASSERT_OK_AND_ASSIGN(
      const JobEnvironment indexed,
      job({{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "train-0.train"}}));
  EXPECT_EQ(indexed.rank, Rank{2});
  EXPECT_EQ(indexed.store, served_by_rank_zero("train-0.train", kDefaultStorePort));
}

TEST(JobEnvironment, LocalNumbersThatCannotBeAreRefused) {
  EXPECT_THAT(job(with(kByHand, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}})),
              StatusIs(Code::kInvalid, HasSubstr("LOCAL_RANK")));
  EXPECT_THAT(job(with(kByHand, {{"LOCAL_WORLD_SIZE", "5"}})),
              StatusIs(Code::kInvalid, HasSubstr("WORLD_SIZE")));
}

}  // namespace
}  // namespace lockstep::store
