#include "lockstep/backend/native/native_world.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "lockstep/backend/native/native_window.h"
#include "lockstep/backend/native/setup_watch.h"
#include "lockstep/backend/native/tuner.h"
#include "lockstep/base/check.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/spanning.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using transport::Communicator;
using transport::Layout;
using transport::link::Door;
using transport::link::Links;
using transport::shm::Board;
using transport::shm::Domain;
using transport::shm::Segment;

constexpr Duration kLinkSpin = 50us;

// What a window of a chain between hosts is worth of staging on one: at the end of each the wire is idle.
constexpr std::uint64_t kChainWindows = 4;

}  // namespace

Result<std::unique_ptr<NativeWorld>> NativeWorld::make(const WorldOptions& options, Rendezvous rendezvous,
                                                       const Clock& clock, SocketCalls& calls) {
  std::unique_ptr<NativeWorld> world(new NativeWorld(options, std::move(rendezvous), clock, calls));
  Status status = world->set_up();
  if (!status.ok()) return world->size().value > 1 ? SetupWatch(world->rendezvous_).fail(status) : status;
  return world;
}

NativeWorld::NativeWorld(const WorldOptions& options, Rendezvous rendezvous, const Clock& clock,
                         SocketCalls& calls)
    : options_(options),
      clock_(clock),
      calls_(calls),
      rendezvous_(std::move(rendezvous)),
      fork_generation_(base::fork_generation()),
      helpers_(options.threads ? *options.threads
                               : helpers_for(rendezvous_.local_size.value, base::usable_cores())) {}

NativeWorld::~NativeWorld() {
  all_.reset();
  if (base::fork_generation() != fork_generation_) return;  // each of its parts knows what is the parent's
  const MutexLock lock(mutex_);
  LOCKSTEP_CHECK(groups_.empty(), "a World was destroyed before its groups");
}

transport::Identity NativeWorld::identity() const {
  return {.job_id = rendezvous_.job_id,
          .epoch = rendezvous_.epoch,
          .secret = rendezvous_.secret,
          .rank = rendezvous_.rank,
          .world = rendezvous_.world_size};
}

Bytes NativeWorld::staging_of(const Layout& layout) const {
  const bool chained = layout.host_count() > 1 && layout.size() > layout.host_count();
  return chained ? Bytes{kChainWindows * options_.staging.value} : options_.staging;
}

transport::shm::Patience NativeWorld::patience() const {
  return transport::shm::Patience::for_occupancy(rendezvous_.local_size, base::usable_cores());
}

Status NativeWorld::refuse(std::string_view what) const {
  if (base::fork_generation() != fork_generation_)
    return Status::invalid(
        cat(what, " was asked of a world that belongs to the parent of this forked process"),
        {.failure = Failure::kForked, .rank = rank()});
  const MutexLock lock(mutex_);
  return left_out_;
}

Status NativeWorld::check_left(const std::vector<Rank>& members) const {
  const MutexLock lock(mutex_);
  for (const Rank member : members) {
    if (std::binary_search(left_.begin(), left_.end(), member)) continue;
    return Status::invalid(
        cat("rank ", member, " was left out when the world was shrunk to rank ", base::ranks_text(left_)),
        {.failure = Failure::kLeftOut, .rank = rank(), .peer = member});
  }
  return {};
}

Status NativeWorld::explain(const Status& error) {
  const std::string key = cat("left_out/", rank());
  const auto left_out = rendezvous_.store->check({&key, 1});
  if (!left_out.ok() || !*left_out) return error;
  const auto why = rendezvous_.store->get(key);
  if (!why.ok()) return error;
  const MutexLock lock(mutex_);
  left_out_ = Status::disconnected(std::string(text_of(*why)),
                                   {.failure = Failure::kLeftOut, .rank = rank(), .peer = rank()});
  return left_out_;
}

Result<std::unique_ptr<Backend>> NativeWorld::new_group(const std::vector<Rank>& members,
                                                        const GroupOptions& options) {
  LOCKSTEP_TRY(refuse("a group"));
  LOCKSTEP_TRY(check_members(members, rank(), size()));
  LOCKSTEP_TRY(check_left(members));
  GroupOptions named = options;
  if (!named.name) named.name = names_.next(members);
  auto group = make_group(members, named, *named.name, clock_.in(rendezvous_.store->timeout()));
  if (!group.ok()) return explain(group.status());
  return group;
}

Result<std::unique_ptr<Backend>> NativeWorld::make_group(const std::vector<Rank>& members,
                                                         const GroupOptions& options,
                                                         std::string_view identity,
                                                         const Deadline& deadline) {
  const auto own = std::find(members.begin(), members.end(), rank());
  NativeGroupParts parts{.plan = {.name = *options.name,
                                  .rank = Rank(static_cast<int>(own - members.begin())),
                                  .members = members,
                                  .timeout = options.timeout},
                         .mail = *mail_,
                         .means = means_,
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
    if (monitor_) monitor_->forget(id);
    if (door_) door_->forget(id);
    const MutexLock lock(mutex_);
    while (ending_.contains(group)) ended_.wait(mutex_);
    groups_.erase(group);
  };
  auto group = std::make_unique<NativeGroup>(std::move(parts), clock_);
  const MutexLock lock(mutex_);
  groups_.insert(group.get());
  return std::unique_ptr<Backend>(std::move(group));
}

void NativeWorld::lose_messages(const Status& why) {
  const Status lost = why.with_prefix(cat("rank ", rank(), ": its messages have ended: "))
                          .with_cause({.failure = why.failure(), .rank = rank(), .peer = rank()});
  const MutexLock lock(mutex_);
  for (NativeGroup* const group : groups_) group->fail_from_outside(lost);
}

Status NativeWorld::first_lost(const std::vector<Rank>& members) const {
  const std::map<Rank, Status> lost = monitor_->lost(members);
  return lost.empty() ? Status() : lost.begin()->second;
}

Result<std::unique_ptr<Communicator>> NativeWorld::connect(std::uint64_t id, int position,
                                                           const std::vector<Rank>& members,
                                                           const Deadline& deadline) {
  std::vector<int> labels;
  labels.reserve(members.size());
  for (const Rank member : members) labels.push_back(host_of_[static_cast<std::size_t>(member.value)]);
  Layout layout = Layout::of(std::span<const int>(labels));
  transport::shm::BoardOptions options{.name = base::hex(std::as_bytes(std::span(&id, 1))),
                                       .members = {},
                                       .look = [this, &members] { return first_lost(members); },
                                       .merge = layout.host_count() > 1 ? transport::kMergeFailures : 0s,
                                       .describe = collective::describe_entries,
                                       .payload = options_.memory_checks == MemoryChecks::kOn
                                                      ? transport::shm::PayloadChecks::kOn
                                                      : transport::shm::PayloadChecks::kOff,
                                       .staging = staging_of(layout),
                                       .patience = patience()};
  const std::vector<int>& here = layout.neighbours_of(position);
  for (const int at : here) {
    int index = 0;
    while (domain_->rank_of(index) != members[static_cast<std::size_t>(at)]) ++index;
    options.members.push_back(index);
  }
  options.name += cat('.', here.front());  // one board per host
  LOCKSTEP_ASSIGN(std::unique_ptr<Board> board, Board::make(*domain_, options, *rendezvous_.store, deadline));
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
  };
  const auto look = [&on_host] { return on_host.final_failure(); };
  if (layout.host_count() == 1) {
    monitor_->watch(id, members, hear_monitor, look);
    return std::make_unique<Communicator>(position, members, std::move(layout), std::move(board), nullptr);
  }
  std::vector<std::vector<base::SocketAddress>> addresses;
  addresses.reserve(members.size());
  for (const Rank member : members) addresses.push_back(doors_[static_cast<std::size_t>(member.value)]);
  LOCKSTEP_ASSIGN(std::shared_ptr<transport::link::Inbox> inbox, door_->inbox(id));
  auto links = std::make_unique<Links>(
      transport::link::LinksOptions{
          .group = id,
          .identity = identity(),
          .position = position,
          .ranks = members,
          .addresses = std::move(addresses),
          .protection = options_.privacy == Privacy::kEncrypt ? transport::Protection::kSealed
                                                              : transport::Protection::kIntegrity,
          .look = [&on_host] { return on_host.look(); },
          .has_left = [this](Rank peer) { return monitor_->has_left(peer); },
          .describe =
              [own = rank()](Rank peer, const auto& mismatch) {
                return collective::describe_mismatch(own, peer, mismatch);
              },
          .judge = [own = rank()](Rank peer,
                                  const auto& stray) { return collective::judge_stray(own, peer, stray); },
          .calls = calls_,
          .streams = options_.streams,
          .spin = rendezvous_.local_size.value <= base::usable_cores() ? kLinkSpin : Duration::zero(),
          .congestion_control = options_.congestion_control},
      std::move(inbox));
  door_->listen_for_news(id, hear_host);
  monitor_->watch(id, members, hear_monitor, look);
  if (options_.connect == Connect::kAtStart) {
    std::vector<int> others;
    for (int i = 0; i < layout.size(); ++i) {
      if (std::ranges::find(here, i) == here.end()) others.push_back(i);
    }
    if (const Status connected = links->connect(others, deadline); !connected.ok()) {
      monitor_->forget(id);
      door_->forget(id);
      return connected.with_prefix(cat("rank ", rank(), ": a group cannot be connected: "));
    }
  }
  return std::make_unique<Communicator>(position, members, std::move(layout), std::move(board),
                                        std::move(links));
}

Result<SharedMemory> NativeWorld::allocate(Bytes size) {
  LOCKSTEP_TRY(refuse("memory"));  // a copy of the allocator would give away the parent's
  if (!domain_) {
    const auto memory = std::make_shared<Buffer>(size.value);
    return SharedMemory{.bytes = *memory, .owner = memory};
  }
  LOCKSTEP_ASSIGN(const transport::shm::Heap::Range range, domain_->heap().allocate(size));
  std::shared_ptr<const void> owner(
      range.data, [domain = domain_, offset = range.offset, made = fork_generation_](const void*) {
        if (base::fork_generation() == made) domain->heap().free(offset);  // else it is the parent's
      });
  return SharedMemory{.bytes = {range.data, size.value}, .owner = std::move(owner)};
}

Result<std::unique_ptr<Window>> NativeWorld::open_window(const std::vector<Rank>& members, Bytes size,
                                                         const GroupOptions& options) {
  LOCKSTEP_ASSIGN(std::unique_ptr<Backend> group, new_group(members, options));
  LOCKSTEP_ASSIGN(std::unique_ptr<NativeWindow> window,
                  NativeWindow::make({.group = std::move(group), .domain = domain_, .patience = patience()},
                                     size, clock_));
  return std::unique_ptr<Window>(std::move(window));
}

Result<std::unique_ptr<World>> NativeWorld::join(const WorldOptions& options, const Environment& environment,
                                                 SocketCalls& calls) {
  const Clock& clock = Clock::steady();
  LOCKSTEP_ASSIGN(Rendezvous rendezvous, store::rendezvous(options.rendezvous, environment, clock));
  const ErrorNote note = rendezvous.error_note;
  auto world = NativeWorld::make(options, std::move(rendezvous), clock, calls);
  if (world.ok()) return std::unique_ptr<World>(*std::move(world));
  note.write(world.status());
  return world.status();
}

Result<std::unique_ptr<World>> World::join(const WorldOptions& options, const Environment& environment) {
  return NativeWorld::join(options, environment, transport::link::SocketCalls::kernel());
}

Result<std::unique_ptr<World>> World::join(const WorldOptions& options) {
  LOCKSTEP_ASSIGN(const Environment environment, Environment::read());
  base::configure_logging(environment.log);
  return join(options, environment);
}

}  // namespace lockstep::backend
