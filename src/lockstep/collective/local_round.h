// One operation's walk through the rounds of a Board: posts, waits, and compares fingerprints. For local*.cpp
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/collective/fingerprint.h"
#include "lockstep/collective/local.h"
#include "lockstep/collective/reduction.h"
#include "lockstep/transport/shm/board.h"

namespace lockstep::collective {

// What a rank says in a round, as it lies in the board's header.
struct RoundHeader {
  Fingerprint fingerprint;
  std::uint64_t total =
      0;              // bytes that the rank exposes over the whole operation (the largest part, if in parts)
  double factor = 1;  // premul_sum
  std::uint64_t resident = 0;  // 1: all of it is posted, where it lies; 0: one window of it, in staging
};
static_assert(sizeof(RoundHeader) == transport::shm::kHeaderSize);

// A peer's posting: its operation is ours, and its range lies in its heap.
struct Exposed {
  RoundHeader header;
  Rank rank;
  std::byte* bytes = nullptr;
  std::size_t size = 0;

  bool resident() const { return header.resident != 0; }
  // `count` bytes at position `at` of what it exposes over the whole operation, of which a window that is not
  // resident begins at `at`. kCorruptFrame if it has posted less.
  Result<std::byte*> window(std::size_t at, std::size_t count) const;
};

class LocalRounds {
 public:
  explicit LocalRounds(const LocalCall& call) : call_(call), board_(call.board) {}

  int index() const { return board_.index(); }
  int size() const { return board_.size(); }
  std::size_t staging_size() { return board_.staging().size(); }

  // Opens a round; then staging() may be filled and one of the posts called. Compares what was posted in the
  // round before, which may be an earlier operation's, if this rank has not seen it there.
  Status open();
  ByteSpan staging() { return board_.staging(); }
  void post_nothing();
  void post_staged(std::size_t size, std::size_t total);
  void post_resident(std::uint64_t offset, std::size_t size, std::size_t total);

  // The posting of the root, once it is there and in the same operation as we are. The root compares itself
  // with everybody, so that one comparison is enough here.
  Result<Exposed> await_root(int root);
  // Those of all members.
  Result<std::vector<Exposed>> await_all();
  // An empty round at the end, after which no peer reads what was posted before. Only `waits` waits for it.
  Status close(bool waits);

  // Where `bytes` lie in our heap; nothing if they are foreign or empty, or with payload checks.
  std::optional<std::uint64_t> resident_offset(ByteView bytes) const;

 private:
  transport::shm::Header header(std::size_t total, bool resident) const;
  Status expose(int peer, Exposed& out) const;
  Status compare_last_round() const;

  const LocalCall& call_;
  transport::shm::Board& board_;
};

// How these peers' inputs are folded.
Fold fold_of(const Fingerprint& fingerprint, int ranks, std::span<const double> factors);
std::vector<double> factors_of(std::span<const Exposed> peers);

// Fills `to`. A block that is shared from where it belongs is there already, and peers may be reading it.
void copy(ByteSpan to, const std::byte* from);
// Fills `to` with what `from` exposes at `at`; `lane` is where our part of a window in parts begins.
Status take(ByteSpan to, const Exposed& from, std::size_t at, std::size_t lane = 0);

// A timeout that names those of this host that are in no operation. If all are, it stays as it is.
Status name_missing(const transport::shm::Board& board, std::uint64_t sequence, const Status& status);

// Records the first failure for all ranks, and gives back what was recorded first on this host. Not a timeout
// where other hosts take part: who is waited for may itself wait.
Status settle(const LocalCall& call, const Status& status);

}  // namespace lockstep::collective
