// For tests with worlds of real processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/backend/native/native_world.h"
#include "lockstep/backend/world.h"
#include "lockstep/testing/process_world.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/temporary_folder.h"

namespace lockstep::backend {

// Ranks as processes; as threads under the thread sanitizer, whose runtime has a thread in every process, so
// that none can be forked. There a rank's argument is where it meets the others.
inline Status run_ranks(int size, const std::function<void(const SpawnedRank&)>& body) {
#if defined(__SANITIZE_THREAD__)
  const testing::TemporaryFolder folder;
  std::vector<std::thread> ranks;
  for (int i = 0; i < size; ++i) {
    ranks.emplace_back([&, i] {
      body({.rank = Rank{i},
            .world_size = WorldSize{size},
            .arguments = {cat("file://", folder.path("job"))}});
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return {};
#else
  return testing::ProcessWorld{size}.run(body);
#endif
}

inline WorldOptions options_of(const SpawnedRank& rank, WorldOptions options) {
  if (rank.arguments.empty()) return options;
  options.rendezvous = {.url = rank.arguments[0], .rank = rank.rank, .world_size = rank.world_size};
  options.heap_capacity = Bytes::gib(1);  // all ranks' views of all heaps are in one process
  return options;
}

// No rank of a test without a stopped one is taken for stopped, however busy the machine is; with one, so
// long is waited for it.
constexpr Duration kNeverStalled = std::chrono::minutes(2);
constexpr Duration kSoonStalled = std::chrono::seconds(3);

inline std::unique_ptr<World> join(const SpawnedRank& rank,
                                   const WorldOptions& options = {.stall_after = kNeverStalled}) {
  auto world = World::join(options_of(rank, options), rank.environment);
  EXPECT_OK(world.status());
  return world.ok() ? std::move(*world) : nullptr;
}

inline bool all_are(std::span<const float> data, float value) {
  return std::all_of(data.begin(), data.end(), [value](float number) { return number == value; });
}

// Counts ranks that came to the end of a test in which another one dies.
class Survivors {
 public:
  Survivors()
      : count_(static_cast<std::atomic<int>*>(
            ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Survivors() { ::munmap(count_, sizeof(int)); }
  Survivors(const Survivors&) = delete;
  Survivors& operator=(const Survivors&) = delete;
  // The world asks those that are left to end; they may finish first.
  static void stay() { (void)::signal(SIGTERM, SIG_IGN); }
  void add() { ++*count_; }
  int count() const { return *count_; }

 private:
  std::atomic<int>* const count_;
};

// A world whose ranks are on several hosts, as far as they know: on which one of each says `host_of`.
inline std::unique_ptr<World> join_on_hosts(const SpawnedRank& rank, const std::function<int(Rank)>& host_of,
                                            WorldOptions options = {.stall_after = kNeverStalled},
                                            std::string_view address = "127.0.0.1") {
  options = options_of(rank, options);
  auto rendezvous = store::rendezvous(options.rendezvous, rank.environment);
  EXPECT_OK(rendezvous.status());
  if (!rendezvous.ok()) return nullptr;
  for (store::Member& member : rendezvous->members) member.host.boot_id = cat("host ", host_of(member.rank));
  rendezvous->addresses = {*base::SocketAddress::parse(address, 0)};
  auto world = NativeWorld::make(options, std::move(*rendezvous), Clock::steady());
  EXPECT_OK(world.status());
  return world.ok() ? std::move(*world) : nullptr;
}

// The first `first` on one host, the others on another.
inline std::unique_ptr<World> join_on_two_hosts(const SpawnedRank& rank, int first,
                                                WorldOptions options = {.stall_after = kNeverStalled},
                                                std::string_view address = "127.0.0.1") {
  return join_on_hosts(
      rank, [first](Rank other) { return other.value < first ? 0 : 1; }, std::move(options), address);
}

}  // namespace lockstep::backend
