#include "lockstep/transport/shm/domain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::shm {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

DomainOptions options_for(int rank, int size, const Secret& secret) {
  DomainOptions options;
  for (int i = 0; i < size; ++i) options.members.emplace_back(i * 3);  // world ranks need not be dense
  options.rank = Rank{rank * 3};
  options.job_id = "test";
  options.secret = secret;
  options.heap_capacity = Bytes::mib(64);
  return options;
}

// Each rank joins on a thread of its own, with mappings of its own, as processes would.
template <typename Body>
void join_all(int size, Body body) {
  store::HashStore store;
  const Secret secret = Secret::generate();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto domain = Domain::join(options_for(rank, size, secret), store, Clock::steady().in(30s));
      ASSERT_OK(domain.status());
      body(**domain, store);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Domain, EveryMemberSeesEveryHeap) {
  for (const int size : {1, 2, 3, 8}) {
    join_all(size, [size](Domain& domain, Store& store) {
      auto range = domain.heap().allocate(Bytes{64});
      ASSERT_OK(range.status());
      const std::string text = cat("from ", domain.index());
      std::memcpy(range->data, text.data(), text.size() + 1);
      ASSERT_OK(store.set(cat("offset/", domain.index()), bytes_of(cat(range->offset))));
      ASSERT_OK(store.barrier("written", WorldSize{size}));
      for (int peer = 0; peer < size; ++peer) {
        auto offset = store.get(cat("offset/", peer));
        ASSERT_OK(offset.status());
        const auto number = base::parse_integer<std::uint64_t>(text_of(*offset));
        const std::byte* place = domain.at(peer, *number, Bytes{64});
        ASSERT_NE(place, nullptr);
        EXPECT_EQ(std::string(reinterpret_cast<const char*>(place)), cat("from ", peer));
        EXPECT_EQ(domain.rank_of(peer), Rank{peer * 3});
      }
      ASSERT_OK(store.barrier("read", WorldSize{size}));
    });
  }
}

TEST(Domain, AnOffsetOutsideAHeapHasNoPlace) {
  auto domains = Domain::of_threads({Rank{0}, Rank{1}}, Bytes::mib(1));
  ASSERT_OK(domains.status());
  const Domain& domain = *(*domains)[0];
  EXPECT_NE(domain.at(1, 0, Bytes::mib(1)), nullptr);
  EXPECT_EQ(domain.at(1, 1, Bytes::mib(1)), nullptr);
  EXPECT_EQ(domain.at(1, UINT64_MAX, Bytes{1}), nullptr);
  EXPECT_EQ(domain.at(1, 16, Bytes{UINT64_MAX}), nullptr);
}

TEST(Domain, AMemberThatNeverComesIsNamed) {
  lockstep::testing::FakeClock clock;
  store::HashStore store({.clock = &clock});
  DomainOptions options = options_for(0, 3, Secret::generate());
  const Deadline deadline = clock.in(1min);
  std::thread mover([&] { clock.advance(1h); });
  const Status status = Domain::join(options, store, deadline).status();
  mover.join();
  EXPECT_EQ(status.failure(), Failure::kMissingRanks);
  EXPECT_THAT(status.cause().missing, ElementsAre(Rank{3}, Rank{6}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3, 6 on this host did not come"));
}

TEST(Domain, AStrangerWithAnotherSecretIsRefusedAndTheOthersGoOn) {
  store::HashStore store;
  const Secret secret = Secret::generate();
  std::thread first([&] {
    auto domain = Domain::join(options_for(0, 2, secret), store, Clock::steady().in(30s));
    EXPECT_OK(domain.status());
  });
  const Status stranger =
      Domain::join(options_for(1, 2, Secret::generate()), store, Clock::steady().in(30s)).status();
  EXPECT_EQ(stranger.failure(), Failure::kRejected) << stranger.text();
  EXPECT_OK(Domain::join(options_for(1, 2, secret), store, Clock::steady().in(30s)).status());
  first.join();
}

TEST(Domain, AStrangerThatComesAgainAndAgainIsLoggedOnce) {
  store::HashStore store;
  const Secret secret = Secret::generate();
  ::testing::internal::CaptureStderr();
  std::thread first([&] {
    auto domain = Domain::join(options_for(0, 2, secret), store, Clock::steady().in(30s));
    EXPECT_OK(domain.status());
  });
  for (int i = 0; i < 5; ++i) {
    const auto stranger = Domain::join(options_for(1, 2, Secret::generate()), store, Clock::steady().in(30s));
    EXPECT_EQ(stranger.status().failure(), Failure::kRejected) << stranger.status().text();
  }
  EXPECT_OK(Domain::join(options_for(1, 2, secret), store, Clock::steady().in(30s)).status());
  first.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto line = log.find("refused a process");
  ASSERT_NE(line, std::string::npos) << log;
  EXPECT_EQ(log.find("refused a process", line + 1), std::string::npos) << log;
}

// In the place of a member's own.
UniqueFd listen_at(const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener.get(), 8), 0);
  return listener;
}

// As one does that takes us for too slow.
TEST(Domain, AMemberThatClosesInTheMiddleOfTheHelloIsAskedAgain) {
  const std::string name = cat("lockstep-domain-test-", ::getpid());
  const UniqueFd listener = listen_at(name);
  std::atomic<bool> again = false;
  std::thread porter([&] {
    for (int i = 0; i < 2; ++i) {
      const UniqueFd guest(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::byte byte{};
      EXPECT_EQ(::recv(guest.get(), &byte, 1, 0), 1);
    }
    again = true;
  });
  store::HashStore store;
  DomainOptions options = options_for(1, 2, Secret::generate());
  options.look = [&again] { return again ? Status::aborted("it came again") : Status(); };
  ASSERT_OK(store.set(cat("heap/", options.members[0]), bytes_of(name)));
  const auto domain = Domain::join(options, store, Clock::steady().in(60s));
  EXPECT_EQ(domain.status().code(), Code::kAborted) << domain.status().text();
  ::shutdown(listener.get(), SHUT_RDWR);  // where it did not
  porter.join();
}

TEST(Domain, AMemberThatListensAndNeverAnswersDoesNotKeepWhatElseFailsFromBeingHeard) {
  const std::string name = cat("lockstep-domain-test-", ::getpid());
  const UniqueFd listener = listen_at(name);
  store::HashStore store;
  DomainOptions options = options_for(1, 2, Secret::generate());
  int looks = 0;
  options.look = [&looks] { return ++looks > 2 ? Status::aborted("another rank died") : Status(); };
  ASSERT_OK(store.set(cat("heap/", options.members[0]), bytes_of(name)));
  const auto domain = Domain::join(options, store, Clock::steady().in(60s));
  EXPECT_EQ(domain.status().code(), Code::kAborted) << domain.status().text();
}

}  // namespace
}  // namespace lockstep::transport::shm
