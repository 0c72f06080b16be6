// A Communicator is one group's data path: the Board that its members on this host share, and the Links to
// its members on other hosts. Algorithms (collective/) run on it; nothing moves between their calls.
//
// Thread safety: one thread at a time; fail() and failure() any thread.
// Errors: the first failure of the group, as far as this host has heard, is on the board. fail() records it
// and tells the other hosts. After that the communicator is dead; build a new one. Without memory fail()
// throws std::bad_alloc, and may be called again.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/transport/layout.h"
#include "lockstep/transport/link/links.h"
#include "lockstep/transport/shm/board.h"

namespace lockstep::transport {

// How long the hosts of a group wait for each other's first failures, so that all quote the same: until all
// have answered, and for so long where one does not, or nobody asks.
constexpr Duration kMergeFailures = std::chrono::milliseconds(100);

class Communicator {
 public:
  // `ranks` are those of the members in the world, by position. `links` is nothing for a group on one host.
  Communicator(int position, std::vector<Rank> ranks, Layout layout, std::unique_ptr<shm::Board> board,
               std::unique_ptr<link::Links> links);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int position() const { return position_; }
  int size() const { return layout_.size(); }
  Rank rank_of(int position) const { return ranks_[static_cast<std::size_t>(position)]; }
  const Layout& layout() const { return layout_; }
  shm::Board& board() { return *board_; }
  // Only for a group on several hosts.
  link::Links& links() { return *links_; }

  // Ends the group; who is the first on its host tells the other hosts. Gives back the failure that was
  // first, for all hosts.
  Status fail(const Status& status);
  Status failure() const { return board_->failure(); }
  // A link that ended without a word may be that of a rank that has left because of a failure elsewhere:
  // gives the news of that a short while to come. Ok if none did.
  Status wait_for_news() const;
  // The same from a thread that does not run the group's operation: members on this host hear it at once,
  // those on others from whoever runs one here.
  void fail_from_outside(const Status& status) { (void)board_->fail(status); }
  // This member takes part in nothing any more; `sequence` is the number of its last operation.
  void leave(std::uint64_t sequence);

 private:
  void tell(const Status& failure);
  void tell_whom_it_names(const Status& failure) const;
  std::vector<link::Links::Host> who_can_be_told(const Status& failure) const;

  const int position_;
  const std::vector<Rank> ranks_;
  const Layout layout_;
  const std::unique_ptr<shm::Board> board_;
  const std::unique_ptr<link::Links> links_;
};

}  // namespace lockstep::transport
