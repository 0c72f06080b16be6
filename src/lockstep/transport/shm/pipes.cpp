#include "lockstep/transport/shm/pipes.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "lockstep/base/text.h"

namespace lockstep::transport::shm {
namespace {

// What is written is shown to the other side after so many bytes, so that both work at the same time.
constexpr std::uint64_t kStep = 32U << 10;

constexpr std::size_t kLine = 64;

Status closed_here() {
  return Status::disconnected("it was closed on this side", {.failure = Failure::kClosed});
}

// What cannot be a reason is none of a rank that has left.
Status closed_there(std::uint32_t why) {
  if (why == static_cast<std::uint32_t>(Pipes::Why::kLeft))
    return Status::disconnected("it has closed its end", {.failure = Failure::kClosed});
  return Status::disconnected("something has failed there, and it has closed its end",
                              {.failure = Failure::kRemoteError});
}

}  // namespace

Pipes::Pipes(std::shared_ptr<Domain> domain, PipesOptions options)
    : domain_(std::move(domain)),
      options_(std::move(options)),
      capacity_(options_.capacity.value),
      index_(domain_->index()),
      blocks_(static_cast<std::size_t>(domain_->size())),
      ends_(static_cast<std::size_t>(domain_->size())) {}

Bytes Pipes::block_size(int members) {
  return Bytes{sizeof(Block) + static_cast<std::size_t>(members) * sizeof(Place)};
}

Result<std::unique_ptr<Pipes>> Pipes::make(std::shared_ptr<Domain> domain, PipesOptions options) {
  std::unique_ptr<Pipes> pipes(new Pipes(std::move(domain), std::move(options)));
  const Bytes size = block_size(pipes->domain_->size());
  LOCKSTEP_ASSIGN(const Heap::Range range, pipes->domain_->heap().allocate(size, alignof(Block)));
  std::memset(range.data, 0, size.value);
  pipes->offset_ = range.offset;
  pipes->blocks_[static_cast<std::size_t>(pipes->index_)] = reinterpret_cast<Block*>(range.data);
  return pipes;
}

void Pipes::close() {
  for (int i = 0; i < domain_->size(); ++i) {
    if (i != index_ && blocks_[static_cast<std::size_t>(i)] != nullptr) close(i, Why::kLeft);
  }
}

Status Pipes::meet(Rank rank, std::uint64_t offset) {
  int neighbour = 0;
  while (neighbour < domain_->size() && domain_->rank_of(neighbour) != rank) ++neighbour;
  if (neighbour == domain_->size()) return Status::invalid(cat("rank ", rank, " is not on this host"));
  std::byte* const place =
      offset % alignof(Block) == 0 ? domain_->at(neighbour, offset, block_size(domain_->size())) : nullptr;
  if (place == nullptr) return corrupt(neighbour, "has announced a block at offset", offset);
  blocks_[static_cast<std::size_t>(neighbour)] = reinterpret_cast<Block*>(place);
  return {};
}

std::optional<int> Pipes::position_of(Rank rank) const {
  for (int i = 0; i < domain_->size(); ++i) {
    const bool met = i != index_ && blocks_[static_cast<std::size_t>(i)] != nullptr;
    if (met && domain_->rank_of(i) == rank) return i;
  }
  return std::nullopt;
}

Status Pipes::corrupt(int neighbour, std::string_view what, std::uint64_t value) const {
  return Status::disconnected(
      cat("rank ", domain_->rank_of(neighbour), ' ', what, ' ', value, ", which cannot be"),
      {.failure = Failure::kCorruptFrame, .peer = domain_->rank_of(neighbour)});
}

Status Pipes::open_out(int neighbour, Ends& ends) {
  if (ends.out != nullptr) return {};
  LOCKSTEP_ASSIGN(const Heap::Range range, domain_->heap().allocate(Bytes{capacity_}, alignof(Place)));
  ends.out = range.data;
  ends.out_offset = range.offset;
  ours(neighbour).ring.store(range.offset + 1, std::memory_order_release);
  return {};
}

Status Pipes::open_in(int neighbour, Ends& ends) {
  if (ends.in != nullptr) return {};
  const std::uint64_t ring = theirs(neighbour).ring.load(std::memory_order_acquire);
  if (ring == 0) return corrupt(neighbour, "has written without a ring, at", ring);
  ends.in = domain_->at(neighbour, ring - 1, Bytes{capacity_});
  return ends.in != nullptr ? Status() : corrupt(neighbour, "has announced a ring at offset", ring - 1);
}

void Pipes::copy_in(std::byte* to, ByteView bytes) const {
  const std::size_t into_line = reinterpret_cast<std::uintptr_t>(to) % kLine;
  if (!options_.copy || bytes.size() < kLine) {
    std::memcpy(to, bytes.data(), bytes.size());
    return;
  }
  const std::size_t head = (kLine - into_line) % kLine;
  std::memcpy(to, bytes.data(), head);
  options_.copy({to + head, bytes.size() - head}, bytes.data() + head);
}

Result<std::size_t> Pipes::write(int neighbour, ByteView bytes) {
  Ends& ends = ends_[static_cast<std::size_t>(neighbour)];
  const Place& place = theirs(neighbour);
  if (ends.closed) return closed_here();
  if (const auto why = place.closed.load(std::memory_order_acquire)) return closed_there(why);
  LOCKSTEP_TRY(open_out(neighbour, ends));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::uint64_t read = place.read.load(std::memory_order_seq_cst);
    const std::uint64_t unread = ends.written - read;
    if (unread > capacity_) return corrupt(neighbour, "has counted as read", read);
    const std::uint64_t at = ends.written % capacity_;
    const std::uint64_t size = std::min(
        {capacity_ - unread, capacity_ - at, static_cast<std::uint64_t>(bytes.size() - done), kStep});
    if (size == 0) break;
    copy_in(ends.out + at, bytes.subspan(done, size));
    done += size;
    ends.written += size;
    ours(neighbour).written.store(ends.written, std::memory_order_seq_cst);
    blocks_[static_cast<std::size_t>(neighbour)]->bell.ring();
  }
  return done;
}

Result<std::size_t> Pipes::read(int neighbour, ByteSpan bytes) {
  Ends& ends = ends_[static_cast<std::size_t>(neighbour)];
  if (ends.closed) return closed_here();
  const Place& place = theirs(neighbour);
  std::size_t done = 0;
  while (done < bytes.size()) {
    // Closed first: what was written before is seen then.
    const std::uint32_t closed = place.closed.load(std::memory_order_acquire);
    const std::uint64_t unread = place.written.load(std::memory_order_seq_cst) - ends.read;
    if (unread > capacity_) return corrupt(neighbour, "has counted as written", ends.read + unread);
    if (unread == 0 && closed != 0 && done == 0) return closed_there(closed);
    if (unread == 0) break;
    LOCKSTEP_TRY(open_in(neighbour, ends));
    const std::uint64_t at = ends.read % capacity_;
    const std::uint64_t size =
        std::min({unread, capacity_ - at, static_cast<std::uint64_t>(bytes.size() - done), kStep});
    std::memcpy(bytes.data() + done, ends.in + at, size);
    done += size;
    const std::uint64_t before = std::exchange(ends.read, ends.read + size);
    ours(neighbour).read.store(ends.read, std::memory_order_seq_cst);
    // Whoever found the ring full may sleep.
    if (place.written.load(std::memory_order_seq_cst) - before >= capacity_)
      blocks_[static_cast<std::size_t>(neighbour)]->bell.ring();
  }
  return done;
}

bool Pipes::has_spoken(int neighbour) const {
  if (blocks_[static_cast<std::size_t>(neighbour)] == nullptr) return false;
  const Place& place = theirs(neighbour);
  return place.written.load(std::memory_order_relaxed) != 0;
}

void Pipes::close(int neighbour, Why why) {
  Ends& ends = ends_[static_cast<std::size_t>(neighbour)];
  if (ends.closed) return;
  ends.closed = true;
  ours(neighbour).closed.store(static_cast<std::uint32_t>(why), std::memory_order_seq_cst);
  blocks_[static_cast<std::size_t>(neighbour)]->bell.ring();
}

void Pipes::offer(int neighbour, std::uint64_t id) {
  ours(neighbour).offer.store(2 * id, std::memory_order_release);
}

bool Pipes::revoke(int neighbour, std::uint64_t id) {
  std::uint64_t offered = 2 * id;
  return ours(neighbour).offer.compare_exchange_strong(offered, 0);
}

const std::byte* Pipes::offered(int neighbour, std::uint64_t offset, Bytes size) const {
  return domain_->at(neighbour, offset, size);
}

bool Pipes::take(int neighbour, std::uint64_t id) {
  std::uint64_t offered = 2 * id;
  return theirs(neighbour).offer.compare_exchange_strong(offered, 2 * id + 1);
}

void Pipes::free() {
  for (Ends& ends : ends_) {
    if (ends.out != nullptr) domain_->heap().free(ends.out_offset);
    ends = {.closed = true};
  }
  domain_->heap().free(offset_);
}

}  // namespace lockstep::transport::shm
