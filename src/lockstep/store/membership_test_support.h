// For tests of Membership.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/membership.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {

using std::chrono::seconds;
using Joined = Result<std::unique_ptr<Membership>>;

// Ranks as threads on one HashStore and a clock that the test moves.
class MembershipTest : public ::testing::Test {
 protected:
  JoinRequest request(int rank, int size) {
    JoinRequest out;
    out.self.world_size = WorldSize{size};
    out.self.member.rank = Rank{rank};
    out.self.member.host = {cat("node", rank), "boot", 1, 2, 3};
    out.is_gone = [this](const Member& member) { return gone_.contains(member.host.name); };
    return out;
  }
  Joined join(JoinRequest request) {
    return Membership::join(store_, std::move(request), clock_.in(seconds(30)));
  }
  Joined join(int rank, int size) { return join(request(rank, size)); }

  // Each request on its own thread; the answers in their order.
  std::vector<Joined> join_all(std::vector<JoinRequest> requests) {
    std::vector<Joined> out;
    for (std::size_t i = 0; i < requests.size(); ++i) out.emplace_back(Status::internal("not joined"));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < requests.size(); ++i)
      threads.emplace_back([&, i] { out[i] = join(std::move(requests[i])); });
    for (std::thread& thread : threads) thread.join();
    return out;
  }
  std::vector<Joined> join_all(int size) {
    std::vector<JoinRequest> requests;
    for (int rank = 0; rank < size; ++rank) requests.push_back(request(rank, size));
    return join_all(std::move(requests));
  }

  // Returns once `rank` has claimed its slot in `round`.
  void wait_for_slot(int rank, std::uint64_t round = 0) {
    const std::string slot[] = {RoundKeys("default", 0, round).slot(Rank{rank})};
    ASSERT_OK(store_->wait(slot, Clock::steady().in(seconds(60))));
  }
  void wait_for_arrivals(int count, std::uint64_t round = 0) {
    const std::string key = RoundKeys("default", 0, round).arrived();
    const Deadline deadline = Clock::steady().in(seconds(60));
    while (!deadline.expired()) {
      const auto arrived = store_->add(key, 0);
      ASSERT_OK(arrived);
      if (*arrived >= count) return;
      std::this_thread::yield();
    }
    FAIL() << "fewer than " << count << " have arrived";
  }

  testing::FakeClock clock_;
  std::shared_ptr<Store> store_ =
      std::make_shared<HashStore>(StoreOptions{.timeout = seconds(30), .clock = &clock_});
  std::set<std::string> gone_;  // hosts whose processes are dead
};

}  // namespace lockstep::store
