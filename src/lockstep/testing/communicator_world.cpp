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
using transport::shm::Board;
using transport::shm::Domain;

}  // namespace

void CommunicatorWorld::run(const std::function<void(Communicator&)>& body) const {
  const Layout layout = Layout::of(std::span<const int>(hosts_));
  const int size = layout.size();
  const Secret secret = Secret::generate();
  std::vector<Rank> ranks;
  for (int i = 0; i < size; ++i) ranks.emplace_back(i);

  std::vector<std::vector<std::unique_ptr<Domain>>> domains;
  for (const std::vector<int>& members : layout.hosts) {
    auto made = Domain::of_threads({members.begin(), members.end()}, Bytes::gib(1));
    ASSERT_OK(made.status());
    domains.push_back(std::move(*made));
  }
  std::vector<std::unique_ptr<transport::link::Door>> doors;
  std::vector<std::vector<base::SocketAddress>> addresses;
  const auto identity_of = [&](int rank) {
    return transport::Identity{
        .job_id = "job", .secret = secret, .rank = Rank{rank}, .world = WorldSize{size}};
  };
  for (int i = 0; i < size; ++i) {
    auto door = transport::link::Door::open(
        {.identity = identity_of(i), .addresses = {*base::SocketAddress::parse(options_.address, 0)}});
    ASSERT_OK(door.status());
    addresses.push_back((*door)->addresses());
    doors.push_back(std::move(*door));
  }

  store::HashStore store;
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      const auto at = static_cast<std::size_t>(i);
      const int host = layout.host_of[at];
      Domain& domain =
          *domains[static_cast<std::size_t>(host)][static_cast<std::size_t>(layout.local_index[at])];
      transport::shm::BoardOptions options{.name = cat("host", host),
                                           .members = {},
                                           .merge = layout.host_count() > 1 ? options_.merge : 0s,
                                           .describe = collective::describe_entries,
                                           .payload = options_.payload,
                                           .staging = options_.staging,
                                           .patience = {}};
      for (int m = 0; m < domain.size(); ++m) options.members.push_back(m);
      auto board = Board::make(domain, options, store, Clock::steady().in(30s));
      ASSERT_OK(board.status());
      Board& on_host = **board;
      auto inbox = doors[at]->inbox(7);
      ASSERT_OK(inbox.status());
      auto links = std::make_unique<transport::link::Links>(
          transport::link::LinksOptions{
              .group = 7,
              .identity = identity_of(i),
              .position = i,
              .ranks = ranks,
              .addresses = addresses,
              .protection = options_.protection,
              .look = [&on_host] { return on_host.look(); },
              .describe =
                  [i](Rank peer, const auto& mismatch) {
                    return collective::describe_mismatch(Rank{i}, peer, mismatch);
                  },
              .judge = [i](Rank peer,
                           const auto& stray) { return collective::judge_stray(Rank{i}, peer, stray); },
              .calls = options_.calls(i),
              .streams = options_.streams},
          *inbox);
      doors[at]->listen_for_news(7, [&on_host](const Status& news) { on_host.hear(news); });
      Communicator communicator(i, ranks, layout, std::move(*board), std::move(links));
      body(communicator);
      communicator.leave(0);
      doors[at]->forget(7);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::testing
