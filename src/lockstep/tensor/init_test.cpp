// Joining and leaving, on worlds of real processes.
#include "lockstep/tensor/init.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/tensor/group_test_support.h"
#include "lockstep/tensor/resident.h"

namespace lockstep::tensor {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;
using ::testing::HasSubstr;

TEST(Init, NothingWorksBeforeIt) {
  EXPECT_OK(ProcessWorld{1}.run([](const SpawnedRank&) {
    EXPECT_FALSE(is_initialized());
    expect_error([] { get_rank(); }, {"get_rank", "init_process_group()"});
    expect_error([] { all_reduce(at::Tensor()); }, {"all_reduce", "init_process_group()"});
    expect_error([] { destroy_process_group(); }, {"destroy_process_group"});
    expect_error([] { new_group({0}); }, {"new_group", "init_process_group()"});
    expect_error([] { empty_resident({2}); }, {"empty_resident", "init_process_group()"});
    for (const NamedCall& named : calls_of_every_kind()) {
      SCOPED_TRACE(named.name);
      if (named.name != std::string("send"))  // which asks for its own rank, to name a peer
        expect_error([&] { named.call({}); }, {named.name, "init_process_group()"});
    }
  }));
}

TEST(Init, NothingWorksAfterDestroy) {
  run_world(2, [](int rank) {
    const std::string at = "rank " + std::to_string(rank) + ": ";
    const ProcessGroup group = new_group();
    const ProcessGroup lives = new_group();
    destroy_process_group(group);
    for (const NamedCall& named : calls_of_every_kind()) {
      SCOPED_TRACE(named.name);
      expect_error([&] { named.call(group); }, {at, named.name, "was destroyed"});
    }
    expect_sum(lives, 3);
    expect_sum({}, 3);
    const ProcessGroup world(ProcessGroup().state("test"));
    destroy_process_group();
    EXPECT_FALSE(is_initialized());
    for (const ProcessGroup& gone : {world, lives})
      expect_error([&] { barrier({.group = gone}); }, {at, "barrier", "was destroyed"});
    expect_error([] { barrier(); }, {"barrier", "init_process_group()"});
    expect_error([] { new_group({0}); }, {"new_group", "init_process_group()"});
    expect_error([] { destroy_process_group(); }, {"destroy_process_group"});
  });
}

TEST(Init, OfTwoThreadsOneIsRefused) {
  EXPECT_OK(ProcessWorld{2}.run([](const SpawnedRank& rank) {
    std::atomic<int> refused = 0;
    std::atomic<int> joined = 0;
    const auto join = [&] {
      try {
        (void)std::make_unique<WorldHandle>(init_process_group({.environment = rank.environment})).release();
        ++joined;
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), HasSubstr("init_process_group: this process is "));
        ++refused;
      }
    };
    std::thread other(join);
    join();
    other.join();
    EXPECT_EQ(joined, 1);
    EXPECT_EQ(refused, 1);
    expect_sum({}, 3);
    destroy_process_group();
  }));
}

TEST(Init, AWorldOfOneNeedsNobody) {
  run_world(1, [](int) {
    EXPECT_TRUE(is_initialized());
    EXPECT_EQ(get_rank(), 0);
    EXPECT_EQ(get_world_size(), 1);
    EXPECT_EQ(get_node_local_rank(), 0);
    EXPECT_EQ(get_backend(), "native");
    EXPECT_EQ(get_backend_config(), "cpu:native");
    EXPECT_EQ(get_pg_count(), 1);
    expect_sum({}, 1);
    expect_error([] { (void)init_process_group(); }, {"already"});
  });
}

TEST(Init, RefusesWhatCannotBeMeant) {
  EXPECT_OK(ProcessWorld{1}.run([](const SpawnedRank& rank) {
    const auto init = [&](InitOptions options) {
      options.environment = rank.environment;
      (void)init_process_group(options);
    };
    expect_error([&] { init({.backend = "nccl"}); }, {"\"nccl\"", "native"});
    expect_error([&] { init({.backend = "cuda:native"}); }, {"\"native\"", "cuda", "cpu"});
    expect_error([&] { init({.backend = "cpu:native,cpu:native"}); }, {"twice"});
    expect_error([&] { init({.backend = "cpu:"}); }, {"neither a name nor a list"});
    expect_error([&] { init({.rank = 0, .world = {.rendezvous = {.rank = Rank{0}}}}); },
                 {"rank is given twice"});
    expect_error([&] { init({.init_method = "nonsense"}); }, {"nonsense"});
    EXPECT_FALSE(is_initialized());
  }));
}

TEST(Init, MayBeRepeatedAtOnceWithRanksOutOfStep) {
  EXPECT_OK((ProcessWorld{3, 4min}.run([](const SpawnedRank& rank) {
    for (int round = 0; round < 20; ++round) {
      auto world = init_process_group({.environment = rank.environment});
      const at::Tensor tensor = at::full({2}, round, at::kInt);
      all_reduce(tensor);
      EXPECT_TRUE(all_equal(tensor, 3 * round));
      // Some leave by hand, the others when `world` goes; who is ahead joins the next one at once.
      if ((round + rank.rank.value) % 2 == 0) destroy_process_group();
    }
    EXPECT_FALSE(is_initialized());
  })));
}

TEST(Init, AHandleDoesNotEndTheNextWorld) {
  EXPECT_OK(ProcessWorld{2}.run([](const SpawnedRank& rank) {
    auto first = std::make_unique<WorldHandle>(init_process_group({.environment = rank.environment}));
    const ProcessGroup pair = new_group({0, 1});
    destroy_process_group();
    expect_error([] { get_rank(); }, {"init_process_group()"});
    expect_error([&] { barrier({.group = pair}); }, {"barrier", "was destroyed"});
    const auto second = init_process_group({.environment = rank.environment});
    first.reset();
    EXPECT_TRUE(is_initialized());
    expect_sum({}, 3);
    expect_error([&] { barrier({.group = pair}); }, {"barrier", "was destroyed"});
  }));
}

// What an example from outside the tree would pass.
TEST(Init, TakesABackendFromOutside) {
  EXPECT_OK(ProcessWorld{2}.run([](const SpawnedRank& rank) {
    int made = 0;
    const JoinGroups mine = [&](const WorldOptions& options,
                                const Environment& environment) -> Result<std::unique_ptr<Groups>> {
      ++made;
      LOCKSTEP_ASSIGN(std::unique_ptr<World> joined, World::join(options, environment));
      return std::unique_ptr<Groups>(std::move(joined));
    };
    const auto world = init_process_group(
        {.backend = "cpu:mine", .backends = {{"mine", {mine}}}, .environment = rank.environment});
    EXPECT_EQ(made, 1);
    EXPECT_EQ(get_backend(), "cpu:mine");
    EXPECT_EQ(ProcessGroup().backend_name(), "mine");
    expect_sum({}, 3);
  }));
}

}  // namespace
}  // namespace lockstep::tensor
