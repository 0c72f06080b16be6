#include "lockstep/backend/native/facilities.h"

#include <algorithm>
#include <map>
#include <new>

#include "lockstep/backend/members.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/spanning.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using transport::Communicator;
using transport::Layout;
using transport::link::Links;
using transport::shm::Board;

constexpr Duration kLinkSpin = 50us;

// What a window of a chain between hosts is worth of staging on one: at the end of each the wire is idle.
constexpr std::uint64_t kChainWindows = 4;

// To say why messages have ended: with the reserve of memory, and without it.
constexpr int kTellings = 2;

}  // namespace

Facilities::Facilities(const WorldOptions& options, Rendezvous rendezvous, const Clock& clock,
                       transport::link::SocketCalls& calls)
    : options_(options),
      clock_(clock),
      calls_(calls),
      rendezvous_(std::move(rendezvous)),
      fork_generation_(base::fork_generation()),
      helpers_(options.threads.value_or(1)) {}

void Facilities::close() {
  (void)groups_.for_each([this](NativeGroup& group) {
    group.leave("destroyed its world, and with it");
    forget(group.id());
    return Status();
  });
  if (monitor_) monitor_->leave();
  if (mail_) {
    mail_->end(Status::aborted(cat("rank ", rank(), " has left the world"),
                               {.failure = Failure::kClosed, .rank = rank(), .peer = rank()}));
  }
  if (door_) door_->close();
  rendezvous_.seat.reset();
}

bool Facilities::in_forked_child() const { return base::fork_generation() != fork_generation_; }

void Facilities::settle() {
  if (rendezvous_.seat) rendezvous_.seat->settle();
}

transport::Identity Facilities::identity() const {
  return {.job_id = rendezvous_.job_id,
          .epoch = rendezvous_.epoch,
          .secret = rendezvous_.secret,
          .rank = rendezvous_.rank,
          .world = rendezvous_.world_size};
}

Bytes Facilities::staging_of(const Layout& layout) const {
  const bool chained = layout.host_count() > 1 && layout.size() > layout.host_count();
  return chained ? Bytes{kChainWindows * options_.staging.value} : options_.staging;
}

transport::shm::Patience Facilities::patience() const {
  return transport::shm::Patience::for_occupancy(WorldSize{occupancy_.ranks}, occupancy_.cores);
}

transport::shm::PayloadChecks Facilities::payload_checks() const {
  return options_.memory_checks == MemoryChecks::kOn ? transport::shm::PayloadChecks::kOn
                                                     : transport::shm::PayloadChecks::kOff;
}

Status Facilities::first_lost(const std::vector<Rank>& members) const {
  const std::map<Rank, Status> lost = monitor_->lost(members);
  return lost.empty() ? Status() : lost.begin()->second;
}

Status Facilities::look_at_store(std::set<Rank> named) const {
  std::vector<Rank> everyone;
  for (int i = 0; i < size().value; ++i) everyone.emplace_back(i);
  for (const auto& [rank, how] : monitor_->lost(everyone)) named.insert(rank);
  if (named.empty()) return {};
  const std::string key = "answer";
  const auto answer = rendezvous_.store->check({&key, 1}, clock_.in(options_.stall_after));
  if (answer.status().code() != Code::kTimeout) return {};  // what is wrong with it, its next call says
  const std::vector<Rank> ranks(named.begin(), named.end());
  return Status::disconnected(
      cat("rank ", rank(), ": the store has not answered for ", options_.stall_after, ", and rank ",
          base::ranks_text(ranks),
          " is lost, which may be the one that serves it: ", answer.status().message()),
      {.failure = Failure::kStoreLost, .rank = rank(), .missing = ranks});
}

void Facilities::forget(std::uint64_t group) {
  if (monitor_) monitor_->forget(group);
  if (door_) door_->forget(group);
}

void Facilities::lose_messages(const Status& why, std::optional<Rank> peer) {
  const auto says_who = [&] {
    return why.with_prefix(cat("rank ", rank(), ": its messages have ended: "))
        .with_cause({.failure = why.failure(), .rank = rank(), .peer = rank()});
  };
  Status lost = why;  // that there is no memory may be what has ended them
  for (int attempt = 0; attempt < kTellings; ++attempt) {
    try {
      lost = says_who();
      break;
    } catch (const std::bad_alloc&) {
      reserve_.let_go();
    }
  }
  (void)groups_.for_each([&](NativeGroup& group) {
    if (!peer || group.has_member(*peer)) group.fail_from_outside(lost);
    return Status();
  });
}

Result<std::unique_ptr<Backend>> Facilities::make_group(const std::vector<Rank>& members,
                                                        const GroupOptions& options,
                                                        std::string_view identity, const Deadline& deadline) {
  reserve_.renew();
  const auto own = std::find(members.begin(), members.end(), rank());
  NativeGroupParts parts{.facilities = shared_from_this(),
                         .plan = {.name = *options.name,
                                  .rank = Rank(static_cast<int>(own - members.begin())),
                                  .members = members,
                                  .timeout = options.timeout},
                         .mail = *mail_,
                         .means = means_,
                         .reserve = reserve_,
                         .error_note = rendezvous_.error_note};
  parts.id = group_id(cat(rendezvous_.job_id, '/', rendezvous_.epoch, '/', identity), members);
  parts.plan.store = std::make_shared<store::PrefixStore>(cat("group/", parts.id), rendezvous_.store);
  if (members.size() > 1) {
    LOCKSTEP_ASSIGN(parts.communicator, connect(parts.id, parts.plan.rank.value, members, deadline));
  }
  if (monitor_) {
    parts.has_left = [left = monitor_->left()](Rank peer) -> bool {
      return (*left)[static_cast<std::size_t>(peer.value)];
    };
    parts.lost = [this, members] {
      std::vector<Rank> ranks;
      for (const auto& [lost, how] : monitor_->lost(members)) ranks.push_back(lost);
      return ranks;
    };
  }
  parts.on_leave = [this, id = parts.id](NativeGroup* group) {
    forget(id);
    groups_.remove(group);
  };
  auto group = std::make_unique<NativeGroup>(std::move(parts), clock_);
  groups_.add(group.get());
  return std::unique_ptr<Backend>(std::move(group));
}

Result<std::unique_ptr<Board>> Facilities::make_board(std::uint64_t id, const Layout& layout, int position,
                                                      const std::vector<Rank>& members,
                                                      const Deadline& deadline) {
  const std::vector<int>& here = layout.neighbours_of(position);
  transport::shm::BoardOptions options{
      .name = cat(base::hex(std::as_bytes(std::span(&id, 1))), '.', here.front()),  // one board per host
      .members = {},
      .look =
          [this, &members] {
            LOCKSTEP_TRY(first_lost(members));
            return look_at_store();
          },
      .merge = layout.host_count() > 1 ? transport::kMergeFailures : 0s,
      .describe = collective::describe_entries,
      .payload = payload_checks(),
      .staging = staging_of(layout),
      .patience = patience()};
  for (const int at : here) {
    int index = 0;
    while (domain_->rank_of(index) != members[static_cast<std::size_t>(at)]) ++index;
    options.members.push_back(index);
  }
  return Board::make(*domain_, options, *rendezvous_.store, deadline);
}

Result<std::unique_ptr<Links>> Facilities::make_links(std::uint64_t id, int position,
                                                      const std::vector<Rank>& members, const Board& board) {
  std::vector<std::vector<base::SocketAddress>> addresses;
  addresses.reserve(members.size());
  for (const Rank member : members) addresses.push_back(doors_[static_cast<std::size_t>(member.value)]);
  LOCKSTEP_ASSIGN(std::shared_ptr<transport::link::Inbox> inbox, door_->inbox(id));
  return std::make_unique<Links>(
      transport::link::LinksOptions{
          .group = id,
          .identity = identity(),
          .position = position,
          .ranks = members,
          .addresses = std::move(addresses),
          .protection = options_.privacy == Privacy::kEncrypt ? transport::Protection::kSealed
                                                              : transport::Protection::kIntegrity,
          .look = [&board] { return board.look(); },
          .has_left = [this](Rank peer) { return monitor_->has_left(peer); },
          .describe =
              [own = rank()](Rank peer, const auto& mismatch) {
                return collective::describe_mismatch(own, peer, mismatch);
              },
          .judge = [own = rank()](Rank peer,
                                  const auto& stray) { return collective::judge_stray(own, peer, stray); },
          .calls = calls_,
          .streams = options_.streams,
          .spin = occupancy_.crowded() ? Duration::zero() : kLinkSpin,
          .congestion_control = options_.congestion_control},
      std::move(inbox));
}

Result<std::unique_ptr<Communicator>> Facilities::connect(std::uint64_t id, int position,
                                                          const std::vector<Rank>& members,
                                                          const Deadline& deadline) {
  std::vector<int> labels;
  labels.reserve(members.size());
  for (const Rank member : members) labels.push_back(host_of_[static_cast<std::size_t>(member.value)]);
  Layout layout = Layout::of(std::span<const int>(labels));
  LOCKSTEP_ASSIGN(std::unique_ptr<Board> board, make_board(id, layout, position, members, deadline));
  Board& on_host = *board;
  // What other hosts say, and what the monitor finds, ends the group's operations, and its messages as soon
  // as all hosts agree.
  const auto end_messages = [&on_host, id, mail = mail_.get()] {
    if (const Status failure = on_host.final_failure(); !failure.ok()) mail->fail_group(id, failure);
  };
  const auto hear_monitor = [&on_host, end_messages](const Status& news) {
    (void)on_host.fail(news);
    end_messages();
  };
  const auto hear_host = [&on_host, end_messages](const Status& news) {
    on_host.hear(news);
    end_messages();
    return on_host.known_failure();
  };
  const auto look = [&on_host] { return on_host.final_failure(); };
  if (layout.host_count() == 1) {
    monitor_->watch(id, members, hear_monitor, look);
    return std::make_unique<Communicator>(position, members, std::move(layout), std::move(board), nullptr);
  }
  LOCKSTEP_ASSIGN(std::unique_ptr<Links> links, make_links(id, position, members, on_host));
  door_->listen_for_news(id, hear_host);
  monitor_->watch(id, members, hear_monitor, look);
  if (options_.connect == Connect::kAtStart) {
    const std::vector<int>& here = layout.neighbours_of(position);
    std::vector<int> others;
    for (int i = 0; i < layout.size(); ++i) {
      if (std::ranges::find(here, i) == here.end()) others.push_back(i);
    }
    if (const Status connected = links->connect(others, deadline); !connected.ok()) {
      forget(id);
      return connected.with_prefix(cat("rank ", rank(), ": a group cannot be connected: "));
    }
  }
  return std::make_unique<Communicator>(position, members, std::move(layout), std::move(board),
                                        std::move(links));
}

}  // namespace lockstep::backend
