// What monitors know of ranks that leave: they are threads of this process, on hosts that it makes up.
#include "lockstep/backend/native/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/backend/native/watcher.h"
#include "lockstep/base/check.h"
#include "lockstep/base/mutex.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using transport::link::Door;

// The ranks of a world without groups: each has its memory, its door, and a monitor once it is started.
class WatchedRanks {
 public:
  // The host of every rank; those of a host follow each other.
  explicit WatchedRanks(std::vector<int> hosts) : host_of_(std::move(hosts)), monitors_(host_of_.size()) {
    for (std::size_t first = 0; first < host_of_.size(); first = domains_.size()) {
      std::vector<Rank> here;
      for (std::size_t i = first; i < host_of_.size() && host_of_[i] == host_of_[first]; ++i)
        here.emplace_back(static_cast<int>(i));
      auto made = transport::shm::Domain::of_threads(here, Bytes::mib(16));
      for (auto& domain : *made) domains_.push_back(std::move(domain));
    }
    for (std::size_t i = 0; i < host_of_.size(); ++i) {
      doors_.push_back(*Door::open({.identity = identity_of(i), .addresses = {kAnywhere}}));
      addresses_.push_back(doors_.back()->addresses());
      everyone_.emplace_back(static_cast<int>(i));
      members_.push_back({.rank = Rank(static_cast<int>(i))});
    }
  }

  // At the same time: they wait for each other.
  void start(const std::vector<int>& ranks) {
    std::vector<std::future<void>> starts;
    for (const int rank : ranks) {
      starts.push_back(std::async(std::launch::async, [this, rank, i = static_cast<std::size_t>(rank)] {
        auto monitor = Monitor::start({.identity = identity_of(i),
                                       .members = members_,
                                       .host_of = host_of_,
                                       .addresses = addresses_,
                                       .stall_after = 1min},
                                      *domains_[i], doors_[i].get(), store_, Clock::steady().in(1min));
        LOCKSTEP_CHECK(monitor.ok(), monitor.status().text());
        monitors_[i] = *std::move(monitor);
        const auto hear = [this, rank](Rank gone) {
          const MutexLock lock(mutex_);
          gone_.emplace(rank, gone.value);
          news_.notify_all();
          return true;
        };
        monitors_[i]->when_left(hear);
        monitors_[i]->watch(
            1, everyone_, [hear](const Status& lost) { hear(*lost.cause().peer); }, [] { return Status(); });
      }));
    }
    for (auto& started : starts) started.get();
  }
  // As a rank does that leaves the world.
  void leave(int rank) {
    monitors_[static_cast<std::size_t>(rank)]->leave();
    close_door(rank);
  }
  void close_door(int rank) { doors_[static_cast<std::size_t>(rank)]->close(); }
  store::Store& store() { return store_; }
  Door& door(int rank) { return *doors_[static_cast<std::size_t>(rank)]; }

  // Waits until it is known at `rank` that the others are gone, one way or the other; gives those that are
  // known to have left.
  std::vector<int> left_as_seen_by(int rank, const std::vector<int>& others) {
    const Deadline limit = Clock::steady().in(1min);
    std::vector<int> left;
    const MutexLock lock(mutex_);
    for (const int other : others) {
      while (!gone_.contains({rank, other}) && !limit.expired()) news_.wait_until(mutex_, limit);
      if (monitors_[static_cast<std::size_t>(rank)]->has_left(Rank{other})) left.push_back(other);
    }
    return left;
  }

 private:
  static inline const base::SocketAddress kAnywhere = *base::SocketAddress::parse("127.0.0.1", 0);

  transport::Identity identity_of(std::size_t rank) const {
    return {.job_id = "job",
            .secret = secret_,
            .rank = Rank(static_cast<int>(rank)),
            .world = WorldSize(static_cast<int>(host_of_.size()))};
  }

  const std::vector<int> host_of_;
  const Secret secret_ = Secret::generate();
  store::HashStore store_;
  std::vector<std::unique_ptr<transport::shm::Domain>> domains_;
  std::vector<std::unique_ptr<Door>> doors_;
  std::vector<std::vector<base::SocketAddress>> addresses_;
  std::vector<Rank> everyone_;
  store::Members members_;
  Mutex mutex_;
  CondVar news_;
  std::set<std::pair<int, int>> gone_ LOCKSTEP_GUARDED_BY(mutex_);  // who has heard it of whom
  std::vector<std::unique_ptr<Monitor>> monitors_;                  // the last ones: they use the rest
};

// Rank 0 has to meet one speaker after the other.
TEST(Monitor, RanksOfAHostThatLeaveOneAfterTheOtherAreNotTakenForDead) {
  WatchedRanks ranks({0, 1, 1, 1});
  ranks.start({0, 1, 2, 3});
  for (const int leaver : {1, 2, 3}) ranks.leave(leaver);
  EXPECT_THAT(ranks.left_as_seen_by(0, {1, 2, 3}), ::testing::ElementsAre(1, 2, 3));
}

// Who speaks for the other host now has not met rank 2 yet, or rank 1.
TEST(Monitor, SpeakersThatLeaveOneAfterTheOtherAreNotTakenForDead) {
  for (const auto& [first, second] : {std::pair(0, 2), std::pair(2, 0)}) {
    WatchedRanks ranks({0, 0, 1, 1});
    ranks.start({0, 1, 2, 3});
    ranks.leave(first);
    ranks.leave(second);
    for (const int other : {1, 3})
      EXPECT_THAT(ranks.left_as_seen_by(other, {first, second}), ::testing::ElementsAre(first, second));
  }
}

// Rank 1 takes nobody's socket: it is about to leave.
TEST(Monitor, WhoLeavesBeforeItHasAnsweredIsNotTakenForDead) {
  WatchedRanks ranks({0, 1});
  const auto inbox = ranks.door(1).inbox(kWatchGroup);
  ASSERT_OK(inbox.status());
  ranks.start({0});
  const Deadline limit = Clock::steady().in(1min);
  std::optional<transport::link::Arrival> arrival;
  while (!arrival && !limit.expired()) arrival = (*inbox)->take(Rank{0}, 0);
  ASSERT_TRUE(arrival);
  ASSERT_OK(ranks.store().set("left/1", {}));
  ranks.close_door(1);
  arrival.reset();
  EXPECT_THAT(ranks.left_as_seen_by(0, {1}), ::testing::ElementsAre(1));
}

}  // namespace
}  // namespace lockstep::backend
