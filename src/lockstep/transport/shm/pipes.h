// Pipes are streams of bytes between the ranks of one host, through their heaps: one for each ordered pair,
// made when its sender first writes.
//
// A pipe is a ring of bytes in its sender's heap, and two counters: how much was written, beside the sender's
// block, and how much was read, beside the receiver's. Each rank writes into its own heap alone, but for
// bells and takings; and heaps move house before they are used on without a rank that may live. So one that
// was left out of the world and comes back changes nothing that anyone reads.
//
//   block of a rank   bell | place for neighbour 0 | place for neighbour 1 | ...       256 bytes and 128 each
//   place             where the ring to that neighbour lies, bytes written, closed; bytes read of its ring,
//                     what is offered to it
//   ring              `capacity` bytes, taken with the first byte
//
// Bytes that lie in the sender's heap need not be written: they can be offered there, and taken.
//
// A bell is rung when bytes were written, when a full ring has room again, and when a pipe was closed: a
// system call only if its rank sleeps on it.
//
// Thread safety: one thread at a time; bell() any thread.
// Errors: counters and places that a neighbour cannot have are kCorruptFrame: nothing outside of its ring is
// ever read. The end of a neighbour's pipe is kDisconnected, after all that it wrote: with kClosed if it has
// left, with kRemoteError if something has failed there.
// Does not: notice a death (the group's monitor does), keep the borders between messages, or wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/shm/domain.h"
#include "lockstep/transport/shm/posting.h"
#include "lockstep/transport/shm/wait.h"

namespace lockstep::transport::shm {

struct PipesOptions {
  // Behaviour: whether what is written is to be checked, which its users do; the same on all ranks.
  PayloadChecks payload = PayloadChecks::kOff;
  // Performance. The capacity is a multiple of 64, and the same on all ranks.
  Bytes capacity = Bytes::kib(256);
  // Copies bytes that another core has read last, and reads next, to where a cache line begins; what it has
  // written is visible to whoever sees a later store. Empty: memcpy.
  std::function<void(ByteSpan to, const std::byte* from)> copy = {};
};

class Pipes {
 public:
  // Takes a block of the heap. The domain is shared with whoever still sleeps on the bell.
  static Result<std::unique_ptr<Pipes>> make(std::shared_ptr<Domain> domain, PipesOptions options = {});
  // Closes all.
  ~Pipes() { close(); }
  Pipes(const Pipes&) = delete;
  Pipes& operator=(const Pipes&) = delete;

  // Where our block lies, to be told to the neighbours; and where a neighbour's does, as it has told.
  std::uint64_t offset() const { return offset_; }
  Status meet(Rank rank, std::uint64_t offset);
  // The position in the domain of a neighbour that was met.
  std::optional<int> position_of(Rank rank) const;

  // As many bytes as there is room for. kNoSpace if there is no memory for the ring.
  Result<std::size_t> write(int neighbour, ByteView bytes);
  // As many bytes as there are.
  Result<std::size_t> read(int neighbour, ByteSpan bytes);
  // Whether it has ever written to us.
  bool has_spoken(int neighbour) const;
  // Whether it has closed its end: nothing can be written to it, but there may be something to be read.
  bool has_closed(int neighbour) const {
    return theirs(neighbour).closed.load(std::memory_order_acquire) != 0;
  }
  // Nothing is written to or read from the neighbour any more, and it is told so; what was written it can
  // still read. The first call counts. Without a neighbour: all of them, because this rank leaves.
  enum class Why : std::uint32_t { kLeft = 1, kFailed = 2 };
  void close(int neighbour, Why why);
  void close();
  // Bytes that are not written but lie in our heap, for the neighbour to copy from there: one offer at a
  // time, told apart by its id. Whoever is first decides: the neighbour takes it, once it has copied all, or
  // we revoke it. So bytes that we may use again after revoke() are never taken, however late the neighbour
  // is; neither side waits for the other.
  void offer(int neighbour, std::uint64_t id);
  // False if it was taken before.
  bool revoke(int neighbour, std::uint64_t id);
  // The bytes that the neighbour has offered, from where it says; null unless all of them lie in its heap.
  const std::byte* offered(int neighbour, std::uint64_t offset, Bytes size) const;
  // False if the offer was revoked: what was copied must not be used.
  bool take(int neighbour, std::uint64_t id);

  // Once no neighbour that shares our pages has these pipes any more (World::shrink): gives the memory back.
  void free();

  Bell& bell() { return blocks_[static_cast<std::size_t>(index_)]->bell; }
  Domain& domain() { return *domain_; }
  PayloadChecks payload_checks() const { return options_.payload; }

 private:
  // What a rank says to one neighbour. It alone writes it, and the neighbour reads it.
  struct alignas(128) Place {
    std::atomic<std::uint64_t> ring;  // its offset plus one; 0 before there is one
    std::atomic<std::uint64_t> written;
    std::atomic<std::uint32_t> closed;  // a Why; 0 as long as it is open
    alignas(64) std::atomic<std::uint64_t> read;
    std::atomic<std::uint64_t> offer;  // twice its id, and one more once the neighbour, who writes here too,
                                       // has taken it; 0 for none
  };
  struct Block {
    Bell bell;
    Place* places() { return reinterpret_cast<Place*>(this + 1); }
  };
  // What this rank knows of one neighbour's pipes; nothing in it is read back from shared memory.
  struct Ends {
    std::byte* out = nullptr;  // our ring
    std::uint64_t out_offset = 0;
    std::uint64_t written = 0;
    const std::byte* in = nullptr;  // its ring
    std::uint64_t read = 0;
    bool closed = false;
  };
  Pipes(std::shared_ptr<Domain> domain, PipesOptions options);

  static Bytes block_size(int members);
  Place& ours(int neighbour) { return blocks_[static_cast<std::size_t>(index_)]->places()[neighbour]; }
  Place& theirs(int neighbour) const {
    return blocks_[static_cast<std::size_t>(neighbour)]->places()[index_];
  }
  Status open_out(int neighbour, Ends& ends);
  Status open_in(int neighbour, Ends& ends);
  void copy_in(std::byte* to, ByteView bytes) const;
  Status corrupt(int neighbour, std::string_view what, std::uint64_t value) const;

  const std::shared_ptr<Domain> domain_;
  const PipesOptions options_;
  const std::uint64_t capacity_;
  const int index_;
  std::uint64_t offset_ = 0;
  std::vector<Block*> blocks_;  // by position in the domain; null for who is not met
  std::vector<Ends> ends_;      // by position in the domain
};

}  // namespace lockstep::transport::shm
