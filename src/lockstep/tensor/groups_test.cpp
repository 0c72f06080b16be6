// Groups on worlds of real processes.
#include "lockstep/tensor/groups.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/backend/native/world_test_support.h"
#include "lockstep/tensor/group_test_support.h"
#include "lockstep/tensor/resident.h"

namespace lockstep::tensor {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ProcessWorld;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Groups, AreMadeByTheirMembersOrByAll) {
  run_world(5, [](int rank) {
    const ProcessGroup odd = new_group({3, 1});  // all ranks call it
    EXPECT_EQ(odd.is_member(), rank % 2 == 1);
    EXPECT_EQ(get_rank(odd), rank == 1 ? 0 : rank == 3 ? 1 : -1);
    EXPECT_EQ(get_world_size(odd), rank % 2 == 1 ? 2 : -1);
    all_reduce(at::ones(1), {.group = odd});  // a non-member is warned, and goes on
    if (rank % 2 == 1) {
      expect_sum(odd, 6);
      EXPECT_THAT(get_process_group_ranks(odd), ElementsAre(1, 3));
      EXPECT_EQ(get_group_rank(odd, 3), 1);
      EXPECT_EQ(get_global_rank(odd, 1), 3);
      expect_error([&] { get_group_rank(odd, 2); }, {"rank 2 is no member"});
      expect_error([&] { get_global_rank(odd, 2); }, {"rank 2", "2 ranks"});
    } else {
      const ProcessGroup even = new_group({4, 0, 2}, {.group_desc = "even ones", .sort_ranks = false});
      EXPECT_EQ(get_rank(even), (rank + 2) / 2 % 3);
      EXPECT_EQ(even.description(), "even ones");
      expect_sum(even, 9);
      // `src` is global: rank 4 is rank 0 of the group.
      const at::Tensor tensor = at::full({1}, rank, at::kInt);
      broadcast(tensor, {.src = 4, .group = even});
      EXPECT_TRUE(all_equal(tensor, 4));
      broadcast(tensor.fill_(rank), {.group_src = 1, .group = even});
      EXPECT_TRUE(all_equal(tensor, 0));
    }
    expect_sum({}, 15);
  });
}

TEST(Groups, MayHaveNamesTimeoutsAndBeDestroyedAlone) {
  run_world(2, [](int rank) {
    ProcessGroup named = new_group({.timeout = 7s, .group_name = "pair"});
    EXPECT_EQ(named.name(), "pair");
    EXPECT_EQ(named.timeout(), 7s);
    set_timeout(9s, named);
    EXPECT_EQ(named.timeout(), 9s);
    EXPECT_EQ(get_pg_count(), 2);
    expect_sum(named, 3);
    barrier();
    destroy_process_group(named);
    EXPECT_EQ(get_pg_count(), 1);
    expect_error([&] { all_reduce(at::ones(1), {.group = named}); },
                 {"all_reduce", "\"pair\"", "was destroyed"});
    named = new_group({.group_name = "pair"});  // the same name again
    expect_sum(named, 3);
    EXPECT_FALSE(named == ProcessGroup());
    EXPECT_TRUE(ProcessGroup() == ProcessGroup());
    const std::string own = "rank " + std::to_string(rank);
    expect_error([] { new_group({0, 2}); }, {own, "new_group", "rank 2"});
    expect_error([] { new_group({0, 0}); }, {"twice"});
    expect_error([] { new_group(std::vector<int>{}); }, {"empty"});
    expect_sum({}, 3);
  });
}

TEST(Groups, AreDivided) {
  run_world(4, [](int rank) {
    const Subgroups halves = new_subgroups(2);
    EXPECT_THAT(halves.ranks, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
    expect_sum(halves.current, rank < 2 ? 3 : 7);
    EXPECT_EQ(get_world_size(new_subgroups().current), 4);  // one host
    expect_error([] { new_subgroups(3); }, {"new_subgroups", "group_size is 3"});

    const Subgroups listed = new_subgroups_by_enumeration({{0, 3}, {1}});
    EXPECT_EQ(get_world_size(listed.current), rank == 2 ? -1 : rank == 1 ? 1 : 2);
    if (rank % 3 == 0) expect_sum(listed.current, 5);
    expect_error(
        [] {
          new_subgroups_by_enumeration({{0, 1}, {1, 2}});
        },
        {"ranks_per_subgroup", "rank 1", "twice"});

    const ProcessGroup split = split_group({{0, 1, 3}});
    EXPECT_EQ(get_world_size(split), rank == 2 ? -1 : 3);
    if (rank != 2) {
      expect_sum(split, 7);
      // Ranks of the parent, not global ones.
      const ProcessGroup last = split_group({{1, 2}}, split);
      if (rank != 0) expect_sum(last, 6);
    }
    const ProcessGroup coloured = split_group(SplitBy{.color = rank % 2, .key = -rank});
    EXPECT_EQ(get_rank(coloured), rank < 2 ? 1 : 0);
    expect_sum(coloured, rank % 2 == 0 ? 4 : 6);
  });
}

TEST(Groups, AreShrunk) {
  run_world(3, [](int rank) {
    const ProcessGroup all = new_group();
    const ProcessGroup rest = rank == 1 ? ProcessGroup::non_member() : shrink_group({1}, all);
    if (rank != 1) expect_sum(rest, 4);
    expect_sum(rank == 2 ? all : new_group({0, 1}, {.group_name = "pair"}), rank == 2 ? 6 : 3);
    if (rank != 2) expect_sum(all, 6);
    barrier();
    if (rank == 1) return;  // it leaves
    const ProcessGroup left = shrink_group({1});
    EXPECT_EQ(get_world_size(), 2);
    EXPECT_EQ(get_rank(), rank == 2 ? 1 : 0);
    EXPECT_TRUE(left == ProcessGroup());
    expect_sum({}, 3);  // global ranks are new
    expect_error([&] { barrier({.group = all}); }, {"was destroyed"});
    expect_error([&] { new_subgroups(1, {}, all); }, {"new_subgroups", "was destroyed"});
    expect_error([&] { split_group({{0}, {1}}, all); }, {"split_group", "was destroyed"});
    expect_error([&] { shrink_group({0}, all); }, {"shrink_group", "was destroyed"});
    expect_error([&] { get_global_rank(all, 0); }, {"get_global_rank", "was destroyed"});
    const ProcessGroup pair = new_group({0, 1}, {.group_name = "pair"});  // other ranks than before
    EXPECT_THAT(pair.ranks(), ElementsAre(0, 1));
    EXPECT_EQ(pair.name(), "pair");
    expect_sum(pair, 3);
  });
}

TEST(Groups, OfTwoThreadsAreMatchedByTheirNames) {
  run_world(2, [](int rank) {
    const auto make = [](const std::string& name) { expect_sum(new_group({.group_name = name}), 3); };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      // In another order on each rank.
      threads.emplace_back([&, i] { make("group " + std::to_string(rank == 0 ? i : 3 - i)); });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Groups, OfTwoThreadsWithoutNamesAreRefused) {
  run_world(2, [](int rank) {
    const at::Tensor word = at::zeros({1});
    if (rank == 1) {
      recv(word, {.src = 0});  // until then a thread of rank 0 is in new_group
      expect_sum(new_group(), 3);
      return;
    }
    // Why `make` was refused; empty if it was not.
    const auto refusal = [](const std::function<void()>& make) -> std::string {
      try {
        make();
        return {};
      } catch (const InvalidArgument& error) {
        return error.what();
      }
    };
    std::thread other([&] {
      // It may itself meet the other thread.
      while (!refusal([] { expect_sum(new_group(), 3); }).empty()) std::this_thread::yield();
    });
    std::string refused;
    // Done at once, as long as nobody else makes a group.
    while (refused.empty()) refused = refusal([] { (void)new_group({0}); });
    EXPECT_THAT(refused, HasSubstr("another thread makes a group"));
    send(word, {.dst = 1});
    other.join();
  });
}

TEST(Groups, LiveUntilWhatRunsInThemIsComplete) {
  run_world(2, [](int rank) {
    const at::Tensor x = at::ones({3});
    {
      const ProcessGroup group = new_group({.group_name = "brief"});
      if (rank == 1) barrier();  // the other has let go of it by then
      (void)all_reduce(x, {.group = group, .async_op = true});
    }
    if (rank == 0) barrier();
    const Deadline deadline = Clock::steady().in(std::chrono::seconds(60));
    while (x[0].item<float>() != 2 && !deadline.expired()) std::this_thread::yield();
    EXPECT_TRUE(all_equal(x, 2));
    EXPECT_EQ(get_pg_count(), 1);
  });
}

TEST(Groups, RefuseTimesBelowZeroAndNonMembers) {
  run_world(2, [](int rank) {
    const auto negative = std::chrono::seconds(-3);
    expect_error([&] { set_timeout(negative); }, {"set_timeout", "-3", "negative"});
    expect_error([&] { new_group({.timeout = negative}); }, {"new_group", "negative"});
    const ProcessGroup other = new_group({1 - rank});
    expect_error([&] { set_timeout(std::chrono::seconds(3), other); },
                 {cat("rank ", rank, ": set_timeout"), "not a member"});
    expect_error([&] { (void)other.backend(); }, {"backend", "not a member"});
    expect_error([&] { split_group({{0}, {77}}); }, {"split_group", "rank 77 in split_ranks"});
    expect_error([&] { new_group({}); }, {"new_group", "empty"});
    expect_error([&] { new_subgroups({}, {}, new_group({rank})); },
                 {"new_subgroups", "group_size is needed"});
    expect_sum({}, 3);
  });
}

TEST(Groups, BelongToTheProcessThatMadeThem) {
  run_world(2, [](int rank) {
    barrier();
    const ProcessGroup group = new_group();
    const at::Tensor t = at::ones({2});
    const pid_t child = ::fork();
    if (child == 0) {
      int wrong = 0;
      for (const NamedCall& named : calls_of_every_kind()) {
        try {
          named.call(group);
          ++wrong;
        } catch (const InvalidArgument& error) {
          const std::string text = error.what();
          const bool told = error.failure() == Failure::kForked &&
                            text.find(cat("rank ", rank, ": ", named.name, ": this process was forked")) !=
                                std::string::npos;
          if (told) continue;
          std::cerr << named.name << ": " << text << "\n";
          ++wrong;
        }
      }
      const std::vector<std::function<void()>> others = {[] { empty_resident({1000}); },
                                                         [&] { set_timeout(std::chrono::seconds(1), group); },
                                                         [&] { new_group({.group_name = "child's"}); },
                                                         [&] { new_subgroups(1, {}, group); },
                                                         [&] {
                                                           split_group({{0}, {1}}, group);
                                                         },
                                                         [&] { shrink_group({1}, group); },
                                                         [] { shrink_group({1}); }};
      for (const auto& call : others) {
        try {
          call();
          std::cerr << "call " << &call - others.data() << " was not refused\n";
          ++wrong;
        } catch (const InvalidArgument& error) {
          if (error.failure() == Failure::kForked) continue;
          std::cerr << error.what() << "\n";
          ++wrong;
        }
      }
      ::_exit(wrong);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    expect_sum(group, 3);
    expect_sum({}, 3);
  });
}

TEST(Groups, ARankThatDiesIsATypedErrorOnTheOthers) {
  backend::Survivors survivors;
  const Status status = ProcessWorld{3}.run([&survivors](const SpawnedRank& rank) {
    backend::Survivors::stay();
    const auto world = init_process_group({.environment = rank.environment});
    barrier();
    if (rank.rank.value == 1) ::kill(::getpid(), SIGKILL);
    try {
      all_reduce(at::ones(1000));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerDied& error) {
      EXPECT_EQ(error.peer(), Rank{1});
      EXPECT_EQ(error.op(), "all_reduce");
      EXPECT_EQ(error.sequence(), 2U);
      EXPECT_THAT(error.what(), HasSubstr("[rank" + std::to_string(rank.rank.value) + "]: "));
    }
    (void)shrink_group({});  // the survivors go on
    expect_sum({}, 3);
    if (!::testing::Test::HasFailure()) survivors.add();
  });
  EXPECT_EQ(survivors.count(), 2) << status.text();
}

}  // namespace
}  // namespace lockstep::tensor
