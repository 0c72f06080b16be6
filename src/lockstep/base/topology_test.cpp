#include "lockstep/base/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace lockstep::base {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using CpuSets = std::vector<std::vector<int>>;

// A machine with `cores[i]` cores on node i, one or two hardware threads each; the second threads are
// numbered after all first ones, as Linux does it.
Topology machine(const std::vector<int>& cores, int threads = 1) {
  Topology topology{.cores = {}, .numa_nodes = static_cast<int>(cores.size()), .packages = 1};
  int total = 0, next = 0;
  for (const int count : cores) total += count;
  for (std::size_t node = 0; node < cores.size(); ++node) {
    for (int i = 0; i < cores[node]; ++i, ++next) {
      Topology::Core core{.numa_node = static_cast<int>(node), .cpus = {next}};
      if (threads == 2) core.cpus.push_back(next + total);
      topology.cores.push_back(core);
    }
  }
  return topology;
}

CpuSets plan(const Topology& topology, int ranks, Binding binding) {
  return plan_binding(topology, WorldSize{ranks}, binding);
}

TEST(PlanBinding, NoneIsEmptySets) {
  EXPECT_THAT(plan(machine({4}), 3, Binding::kNone), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
}

TEST(PlanBinding, CoresAreSplitIntoEqualRuns) {
  EXPECT_EQ(plan(machine({4}), 1, Binding::kCores), (CpuSets{{0, 1, 2, 3}}));
  EXPECT_EQ(plan(machine({4}), 2, Binding::kCores), (CpuSets{{0, 1}, {2, 3}}));
  EXPECT_EQ(plan(machine({4}), 4, Binding::kCores), (CpuSets{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(plan(machine({5}), 2, Binding::kCores), (CpuSets{{0, 1}, {2, 3, 4}}));
}

TEST(PlanBinding, ACoreKeepsItsHardwareThreadsTogether) {
  EXPECT_EQ(plan(machine({4}, 2), 2, Binding::kCores), (CpuSets{{0, 1, 4, 5}, {2, 3, 6, 7}}));
}

TEST(PlanBinding, MoreRanksThanCoresAreNotBound) {
  EXPECT_THAT(plan(machine({2}), 3, Binding::kCores), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(plan(Topology{}, 2, Binding::kCores), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(PlanBinding, RunsDoNotCrossANodeWhereThatCostsNoEquality) {
  EXPECT_EQ(plan(machine({4, 4}), 2, Binding::kCores), (CpuSets{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(plan(machine({4, 4}), 4, Binding::kCores), (CpuSets{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(plan(machine({2, 6}), 4, Binding::kCores), (CpuSets{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(plan(machine({5, 4}), 4, Binding::kCores), (CpuSets{{0, 1}, {2, 3, 4}, {5, 6}, {7, 8}}));
  EXPECT_EQ(plan(machine({4, 5}), 2, Binding::kCores), (CpuSets{{0, 1, 2, 3}, {4, 5, 6, 7, 8}}));
  EXPECT_EQ(plan(machine({3, 5}), 5, Binding::kCores), (CpuSets{{0}, {1, 2}, {3}, {4, 5}, {6, 7}}));
}

TEST(PlanBinding, EqualRunsComeBeforeWholeNodes) {
  EXPECT_EQ(plan(machine({3, 3}), 3, Binding::kCores), (CpuSets{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(plan(machine({2, 6}), 2, Binding::kCores), (CpuSets{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(plan(machine({4, 4}), 3, Binding::kCores), (CpuSets{{0, 1}, {2, 3, 4}, {5, 6, 7}}));
  EXPECT_EQ(plan(machine({4, 4}), 1, Binding::kCores), (CpuSets{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

TEST(PlanBinding, EveryPlanUsesEachCoreOnceAndAsEquallyAsItCan) {
  for (const auto& nodes : {std::vector{7}, {4, 4}, {2, 6}, {3, 5, 1}, {1, 1, 1, 1}, {16, 15}}) {
    const Topology topology = machine(nodes, 2);
    const auto cores = topology.cores.size();
    for (std::size_t ranks = 1; ranks <= cores; ++ranks) {
      const CpuSets sets = plan(topology, static_cast<int>(ranks), Binding::kCores);
      ASSERT_THAT(sets, SizeIs(ranks));
      std::vector<int> all;
      for (const auto& set : sets) {
        EXPECT_GE(set.size(), 2 * (cores / ranks));
        EXPECT_LE(set.size(), 2 * ((cores + ranks - 1) / ranks));
        EXPECT_TRUE(std::ranges::is_sorted(set));
        all.insert(all.end(), set.begin(), set.end());
      }
      std::ranges::sort(all);
      EXPECT_EQ(all.size(), 2 * cores);
      EXPECT_EQ(std::ranges::adjacent_find(all), all.end()) << "a CPU was given twice";
    }
  }
}

TEST(PlanBinding, NumaGivesWholeNodesRoundRobin) {
  EXPECT_EQ(plan(machine({2, 2}), 3, Binding::kNuma), (CpuSets{{0, 1}, {2, 3}, {0, 1}}));
  EXPECT_EQ(plan(machine({2}, 2), 2, Binding::kNuma), (CpuSets{{0, 1, 2, 3}, {0, 1, 2, 3}}));
  Topology second_only = machine({2, 2});
  second_only.cores.erase(second_only.cores.begin(), second_only.cores.begin() + 2);
  EXPECT_EQ(plan(second_only, 2, Binding::kNuma), (CpuSets{{2, 3}, {2, 3}}))
      << "a node without a usable core";
}

TEST(ParseBinding, KnowsItsWords) {
  EXPECT_EQ(parse_binding("none"), Binding::kNone);
  EXPECT_EQ(parse_binding("cores"), Binding::kCores);
  EXPECT_EQ(parse_binding("numa"), Binding::kNuma);
  EXPECT_EQ(parse_binding("Cores"), std::nullopt);
  EXPECT_EQ(parse_binding(""), std::nullopt);
}

TEST(CpuListText, WritesRunsAsTasksetDoes) {
  EXPECT_EQ(cpu_list_text({}), "");
  EXPECT_EQ(cpu_list_text({3}), "3");
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(cpu_list_text({0, 2, 3, 5}), "0,2-3,5");
}

std::vector<int> affinity() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST(ReadTopology, ShowsExactlyTheCpusThatThisProcessMayUse) {
  const auto topology = read_topology();
  ASSERT_TRUE(topology.ok()) << topology.status().text();
  std::vector<int> cpus;
  for (const Topology::Core& core : topology->cores)
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::ranges::sort(cpus);
  EXPECT_EQ(cpus, affinity());
  EXPECT_GE(topology->numa_nodes, 1);
  EXPECT_GE(topology->packages, 1);
}

TEST(BindThisThread, BindsThisThreadAlone) {
  const std::vector<int> before = affinity();
  std::thread([&] {
    const Status status = bind_this_thread({before.back()});
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_THAT(affinity(), ElementsAre(before.back()));
  }).join();
  EXPECT_EQ(affinity(), before);
}

TEST(BindThisThread, RefusesWhatThereIsNot) {
  EXPECT_EQ(bind_this_thread({}).code(), Code::kInvalid);
  EXPECT_EQ(bind_this_thread({-1}).code(), Code::kInvalid);
  const Status status = bind_this_thread({100'000});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("100000"));
}

}  // namespace
}  // namespace lockstep::base
