#include "lockstep/testing/communicator_world.h"

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/collective/spanning.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/link/door.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using transport::Communicator;
using transport::Layout;
using transport::link::Door;
using transport::shm::Board;
using transport::shm::Domain;

constexpr std::uint64_t kGroup = 7;

// What the ranks of a world have before they have a communicator.
struct Job {
  Layout layout;
  std::vector<Rank> ranks = {};
  Secret secret = Secret::generate();
  std::vector<std::vector<std::unique_ptr<Domain>>> domains = {};  // by host, then by place on it
  std::vector<std::unique_ptr<transport::link::Door>> doors = {};  // by rank
  std::vector<std::vector<base::SocketAddress>> addresses = {};    // of the doors
  store::HashStore store;

  transport::Identity identity_of(int rank) const {
    return {.job_id = "job", .secret = secret, .rank = Rank{rank}, .world = WorldSize{layout.size()}};
  }
  Domain& domain_of(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    return *domains[static_cast<std::size_t>(layout.host_of[at])]
                   [static_cast<std::size_t>(layout.local_index[at])];
  }

  Status open(const std::string& address) {
    for (const std::vector<int>& members : layout.hosts) {
      LOCKSTEP_ASSIGN(domains.emplace_back(),
                      Domain::of_threads({members.begin(), members.end()}, Bytes::gib(1)));
    }
    for (int i = 0; i < layout.size(); ++i) {
      ranks.emplace_back(i);
      LOCKSTEP_ASSIGN(
          doors.emplace_back(),
          Door::open({.identity = identity_of(i), .addresses = {*base::SocketAddress::parse(address, 0)}}));
      addresses.push_back(doors.back()->addresses());
    }
    return {};
  }
};

}  // namespace

void CommunicatorWorld::run(const std::function<void(Communicator&)>& body) const {
  Job job;
  job.layout = Layout::of(std::span<const int>(hosts_));
  ASSERT_OK(job.open(options_.address));
  const auto run_rank = [&](int rank) {
    Domain& domain = job.domain_of(rank);
    transport::shm::BoardOptions options{
        .name = cat("host", job.layout.host_of[static_cast<std::size_t>(rank)]),
        .members = {},
        .merge = job.layout.host_count() > 1 ? options_.merge : 0s,
        .describe = collective::describe_entries,
        .payload = options_.payload,
        .staging = options_.staging,
        .patience = {}};
    for (int m = 0; m < domain.size(); ++m) options.members.push_back(m);
    auto board = Board::make(domain, options, job.store, Clock::steady().in(30s));
    ASSERT_OK(board.status());
    Board& on_host = **board;
    Door& door = *job.doors[static_cast<std::size_t>(rank)];
    auto inbox = door.inbox(kGroup);
    ASSERT_OK(inbox.status());
    auto links = std::make_unique<transport::link::Links>(
        transport::link::LinksOptions{
            .group = kGroup,
            .identity = job.identity_of(rank),
            .position = rank,
            .ranks = job.ranks,
            .addresses = job.addresses,
            .protection = options_.protection,
            .look = [&on_host] { return on_host.look(); },
            .describe =
                [rank](Rank peer, const auto& mismatch) {
                  return collective::describe_mismatch(Rank{rank}, peer, mismatch);
                },
            .judge = [rank](Rank peer,
                            const auto& stray) { return collective::judge_stray(Rank{rank}, peer, stray); },
            .calls = options_.calls(rank),
            .streams = options_.streams},
        *inbox);
    door.listen_for_news(kGroup, [&on_host](const Status& news) {
      on_host.hear(news);
      return on_host.known_failure();
    });
    Communicator communicator(rank, job.ranks, job.layout, std::move(*board), std::move(links));
    body(communicator);
    communicator.leave(0);
    door.forget(kGroup);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < job.layout.size(); ++i) threads.emplace_back(run_rank, i);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::testing
