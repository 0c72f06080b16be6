#include "lockstep/transport/shm/domain.h"

#include <poll.h>

#include <algorithm>
#include <new>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/transport/shm/descriptor_exchange.h"

namespace lockstep::transport::shm {
namespace {

constexpr Bytes kLeastPrivate = Bytes::mib(64);

// For a rank that shares with nobody: where there is no address space for all of it, a part will do.
Result<Segment> create_private(Bytes capacity) {
  while (true) {
    auto created = Segment::create_private(capacity);
    const Bytes less{capacity.value / 16};
    if (created.ok() || less < kLeastPrivate) return created;
    capacity = less;
  }
}

}  // namespace

Domain::~Domain() = default;

std::byte* Domain::at(int index, std::uint64_t offset, Bytes size) const {
  const View& view = views_[static_cast<std::size_t>(index)];
  if (offset > view.capacity.value || size.value > view.capacity.value - offset) return nullptr;
  return view.data + offset;
}

bool Domain::is_dead(int index) const {
  const auto i = static_cast<std::size_t>(index);
  if (i >= processes_.size() || !processes_[i]) return false;
  pollfd ended{.fd = processes_[i].get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) == 1;
}

void Domain::retire(std::uint64_t offset, const std::atomic<std::uint32_t>& left, std::uint32_t expected) {
  MutexLock lock(mutex_);
  try {
    retired_.push_back({offset, &left, expected});
  } catch (const std::bad_alloc&) {  // it stays taken
  }
  std::erase_if(retired_, [this](const Retired& range) {
    if (range.left->load(std::memory_order_acquire) != range.expected) return false;
    heap_->free(range.offset);
    return true;
  });
}

Result<std::unique_ptr<Domain>> Domain::join(const DomainOptions& options, store::Store& store,
                                             const Deadline& deadline) {
  const auto position = std::find(options.members.begin(), options.members.end(), options.rank);
  if (position == options.members.end()) {
    return Status::invalid(cat("rank ", options.rank, " is not among the ranks of its own host"));
  }
  std::unique_ptr<Domain> domain(new Domain);
  domain->options_ = options;
  domain->members_ = options.members;
  domain->index_ = static_cast<int>(position - options.members.begin());
  auto created =
      Segment::create(cat("lockstep-heap-", options.rank), options.heap_capacity, options.members.size() - 1);
  const bool alone = options.members.size() == 1;
  if (!created.ok() && alone) created = create_private(options.heap_capacity);
  LOCKSTEP_ASSIGN(Segment own, std::move(created));
  domain->heap_ = std::make_shared<Heap>(std::move(own));
  domain->views_.resize(options.members.size());

  LOCKSTEP_ASSIGN(std::vector<UniqueFd> descriptors, exchange_descriptors({.members = options.members,
                                                                           .index = domain->index_,
                                                                           .job_id = options.job_id,
                                                                           .epoch = options.epoch,
                                                                           .secret = options.secret,
                                                                           .descriptor = domain->heap_->fd(),
                                                                           .look = options.look},
                                                                          store, deadline));
  for (std::size_t i = 0; i < options.members.size(); ++i) {
    if (static_cast<int>(i) == domain->index_) {
      domain->views_[i] = {domain->heap_->data(), domain->heap_->capacity()};
      continue;
    }
    auto peer = Segment::open(std::move(descriptors[i]), domain->heap_->capacity());
    if (!peer.ok()) return peer.status().with_prefix(cat("the heap of rank ", options.members[i], ": "));
    domain->views_[i] = {peer->data(), peer->capacity()};
    domain->peers_.emplace(static_cast<int>(i), std::move(*peer));
  }
  domain->processes_.resize(options.pids.size());
  for (std::size_t i = 0; i < options.pids.size(); ++i) {
    if (static_cast<int>(i) == domain->index_) continue;
    auto process = base::open_pidfd(options.pids[i]);
    if (!process.ok()) {
      return process.status().with_prefix(
          cat("rank ", options.members[i], " (process ", options.pids[i], ") cannot be watched: "));
    }
    domain->processes_[i] = std::move(*process);
  }
  return domain;
}

Status Domain::move_away_from_others(const std::vector<int>& stay) {
  std::set<int> others;
  for (int i = 0; i < size(); ++i) {
    const bool stays = std::find(stay.begin(), stay.end(), i) != stay.end();
    if (!stays && !is_dead(i) && !moved_from_.contains(i)) others.insert(i);
  }
  if (others.empty()) return {};
  LOCKSTEP_TRY(heap_->move_house());
  moved_from_.merge(others);
  return {};
}

Status Domain::renew(const std::vector<int>& stay, const std::string& name, store::Store& store,
                     const Deadline& deadline, const store::Look& look) {
  LOCKSTEP_TRY(move_away_from_others(stay));
  DescriptorExchange exchange{.members = {},
                              .index = 0,
                              .job_id = options_.job_id,
                              .epoch = options_.epoch,
                              .secret = options_.secret,
                              .descriptor = heap_->fd(),
                              .name = name,
                              .look = look};
  for (const int i : stay) {
    if (i == index_) exchange.index = static_cast<int>(exchange.members.size());
    exchange.members.push_back(rank_of(i));
  }
  LOCKSTEP_ASSIGN(std::vector<UniqueFd> descriptors, exchange_descriptors(exchange, store, deadline));
  for (std::size_t i = 0; i < stay.size(); ++i) {
    if (stay[i] == index_) continue;
    const Status followed = peers_.at(stay[i]).follow(std::move(descriptors[i]));
    if (!followed.ok()) return followed.with_prefix(cat("the heap of rank ", rank_of(stay[i]), ": "));
  }
  return {};
}

Result<std::vector<std::unique_ptr<Domain>>> Domain::of_threads(const std::vector<Rank>& members,
                                                                Bytes heap_capacity) {
  std::vector<std::shared_ptr<Heap>> heaps;
  for (const Rank rank : members) {
    LOCKSTEP_ASSIGN(Segment segment,
                    Segment::create(cat("lockstep-heap-", rank), heap_capacity, members.size() - 1));
    heaps.push_back(std::make_shared<Heap>(std::move(segment)));
  }
  std::vector<std::unique_ptr<Domain>> domains;
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::unique_ptr<Domain> domain(new Domain);
    domain->members_ = members;
    domain->index_ = static_cast<int>(i);
    domain->heap_ = heaps[i];
    domain->neighbours_ = heaps;
    for (const auto& heap : heaps) domain->views_.push_back({heap->data(), heap->capacity()});
    domains.push_back(std::move(domain));
  }
  return domains;
}

}  // namespace lockstep::transport::shm
