// A Board is where the ranks of one group on one host meet. Everything they do on it is a sequence of rounds.
//
// In a round every member posts: a header that says which operation it is in, and a range of its heap that
// the others may use. Then it awaits the members whose range it needs, and uses it. That is all; collectives
// are made of rounds (collective/).
//
//   open_round()   may wait: the staging buffer of this round was last used two rounds ago
//   staging()      a buffer of ours that peers can read: foreign bytes are copied to it, then posted
//   post(...)      everything written before it is visible to whoever awaits us
//   await(peer)    then posting_of(peer) is what it posted, and its range may be read until our next post
//
// Why two buffers are enough: a member that posts round r has finished with round r-1, and open_round() of
// round r+1 waits for every member's round r. So when it returns nobody reads what was posted in round r-1.
// A range that is not staging (a resident buffer) is the caller's: it must not change before every member has
// posted a later round.
//
// Thread safety: one thread at a time runs rounds; fail() and failure() any thread, any process.
// Errors: kTimeout names the members that are missing; kDisconnected with kPeerDied a member whose process
// has ended, or with kDesync one that has left while it is waited for. Once a failure is recorded every wait
// returns it, within 50 ms. Then the board is dead.
// Does not: compare headers (collective/ compares fingerprints), or know the operation.
//
// What was posted in the round before the open one can be read as well, until our next post. So a member that
// needs nothing from the others in a round waits for nobody, and compares headers when it opens the next one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"
#include "lockstep/store/watched_wait.h"
#include "lockstep/transport/shm/domain.h"
#include "lockstep/transport/shm/posting.h"
#include "lockstep/transport/shm/wait.h"

namespace lockstep::transport::shm {

struct FailureLog;

// What a member says of the operation that it has begun. Opaque here but for the number: members that say
// something else of the same number are out of step.
struct Entry {
  std::uint64_t sequence = 0;
  std::array<std::uint64_t, 5> words{};
  bool operator==(const Entry&) const = default;
};

struct BoardOptions {
  // Behaviour.
  std::string name;          // of the group; the same on all members, and used once per job
  std::vector<int> members;  // positions in the domain, in the group's order; the same on all of them
  store::Look look = {};     // what ends the wait for members that have not made their board yet
  Duration merge = {};       // how long failures of other hosts are waited for; none on a group's only host
  // The error for two members that are out of step.
  std::function<Status(Rank own, const Entry& mine, Rank peer, const Entry& theirs)> describe = {};
  PayloadChecks payload = PayloadChecks::kOff;  // the same on all members
  // Performance.
  Bytes staging = Bytes::mib(1);  // each of the two buffers; the same on all members
  Patience patience;
};

class Board {
 public:
  // Every member calls it; offsets meet in `store` under "board/". kNoSpace with its rank on all of them if
  // one has no memory for its block.
  static Result<std::unique_ptr<Board>> make(Domain& domain, const BoardOptions& options, store::Store& store,
                                             const Deadline& deadline);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Positions on this board: 0 to size() - 1, in the order of BoardOptions::members.
  int index() const { return index_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  Domain& domain() { return domain_; }
  // The world rank at a position.
  Rank rank_of(int peer) const { return domain_.rank_of(members_[static_cast<std::size_t>(peer)]); }

  Status open_round(const Deadline& deadline);
  ByteSpan staging();
  // A range in our own heap; size 0 posts none.
  void post(const Header& header, std::uint64_t offset = 0, Bytes size = {});
  // Posts the first `size` bytes of staging().
  void post_staging(const Header& header, Bytes size);
  Status await(int peer, const Deadline& deadline);
  Status await_all(const Deadline& deadline);
  Posting posting_of(int peer) const;
  // Its posting in the round before this one, until our own next post.
  Posting last_posting_of(int peer) const;
  // Whether the postings of the round before this one still have to be compared: nobody has said all_agree().
  bool last_round_is_unknown() const { return agreed_ + 1 != round_; }
  // All members that count for this one have posted the same operation in this round.
  void all_agree() { agreed_ = round_; }
  // Whether a posting is as its owner wrote it, in this round or in the one before. kCorruptFrame if
  // something else has changed it; of the range's bytes only with payload checks, in this round.
  enum class Of : bool { kThisRound, kLastRound };
  Status check(int peer, const Posting& posting, Of round = Of::kThisRound) const {
    if (posting.seal != seal_of(posting, round == Of::kThisRound ? round_ : round_ - 1))
      return unsealed(peer);
    if (payload_ == PayloadChecks::kOff || round == Of::kLastRound) return {};
    return check_payload(peer, posting);
  }
  PayloadChecks payload_checks() const { return payload_; }
  // The range that `peer` posted; nullptr if it does not lie inside its heap.
  std::byte* range_of(int peer, const Posting& posting) const;

  // This member has begun the operation with that number, and has ended it. Waits compare the entries of
  // members that need not meet in a round.
  void enter(const Entry& entry);
  void exit(std::uint64_t sequence);
  // Whether the operation that was begun last, or the one before it, has slept in a wait.
  bool has_slept() const { return has_slept_ || had_slept_; }
  // Of the operation before the one that was begun last, to which all should have come: who has begun it
  // last, and how long after this member. Nothing if that is this member, or if it is not known of everybody.
  struct Latest {
    int index;
    std::uint64_t sequence;
    Duration after;
  };
  std::optional<Latest> last_to_enter() const;
  // Since it was made: how much was posted as a copy in staging(), and how long waits have slept. Any thread.
  struct Counters {
    Bytes staged;
    Duration slept;
  };
  Counters counters() const {
    return {.staged = Bytes{staged_bytes_.load(std::memory_order_relaxed)},
            .slept = Duration(slept_.load(std::memory_order_relaxed))};
  }
  // The ranks of those that have not begun it, and are in no earlier one either.
  std::vector<Rank> absent_from(std::uint64_t sequence) const;

  // This member takes part in no round any more; `sequence` is the number of its last operation. Who waits
  // for it is told. Waits for nobody; idempotent.
  void leave(std::uint64_t sequence);

  // `look` is asked, too, on the waiting thread, after every sleep of a wait; an error ends the wait.
  void look_also(std::function<Status()> look) { look_also_ = std::move(look); }

  // Ok while the group can go on: no failure is recorded, and no member has died.
  Status look() const;

  // The first failure is recorded, for every member; later ones are ignored. True if this was the first.
  bool fail(const Status& status);
  // The failure that another host has recorded. Of those that come within `merge` of the first one here, the
  // earliest counts: of the lowest operation, then of the lowest rank. So all hosts come to the same.
  void hear(const Status& status);
  // Ok while there is none. Waits until it is final: all other hosts have answered, or `merge` is over; while
  // one is asked that has not answered, at most three times that.
  Status failure() const;
  // Does not wait: the failure as far as it is known, which may not be final yet.
  Status known_failure() const;
  // Ok as long as failure() would wait.
  Status final_failure() const;
  // True for one member only: the one that tells other hosts of the failure, and hears what they have. It
  // says whether all have answered: then the failure is final.
  bool claim_telling();
  void end_telling(bool all_answered);
  // By the one who cannot.
  void give_back_telling();

 private:
  // Who has not made its part, for an error that says so instead of which keys are not there.
  Status name_absent(const std::vector<std::string>& keys, store::Store& store, const Status& late) const;
  struct Block;
  class Lookout;
  Board(Domain& domain, const BoardOptions& options);

  Status wait_for(std::span<Signal* const> signals, std::uint32_t round, const Deadline& deadline);
  FailureLog& failures() const;
  void nudge_all();
  // Whether a member has died, or one that is waited for has left, or is out of step.
  Status look_around(std::span<Signal* const> signals, std::uint32_t round) const;
  Status compare_entries() const;
  // Of what something else has changed in the block of `peer`.
  Status altered(int peer, std::string_view what) const;
  Status unsealed(int peer) const;
  Status check_payload(int peer, const Posting& posting) const;

  Domain& domain_;
  const std::vector<int> members_;
  const Bytes staging_;
  const Patience patience_;
  const Duration merge_;
  const PayloadChecks payload_;
  const decltype(BoardOptions::describe) describe_;
  int index_ = 0;
  std::uint64_t offset_ = 0;      // of our own block
  std::vector<Block*> blocks_;    // by position
  std::vector<Signal*> signals_;  // by position
  std::uint32_t round_ = 0;       // the one that is open, or was posted last
  Entry entered_;                 // the operation that this member is in
  bool has_slept_ = false;        // in it
  bool had_slept_ = false;        // in the one before
  std::uint32_t agreed_ = 0;      // the last one of which all_agree() was said
  // Written by whoever runs a round.
  std::atomic<std::uint64_t> staged_bytes_ = 0;
  std::atomic<Duration::rep> slept_ = 0;
  std::function<Status()> look_also_ = [] { return Status(); };
};

}  // namespace lockstep::transport::shm
