#include "lockstep/transport/communicator.h"

#include <thread>

namespace lockstep::transport {
namespace {

using namespace std::chrono_literals;

// A neighbour of the dead looks after it every 100 ms, and its speaker passes it on at once.
constexpr Duration kNewsMayTake = 250ms;

}  // namespace

Communicator::Communicator(int position, std::vector<Rank> ranks, Layout layout,
                           std::unique_ptr<shm::Board> board, std::unique_ptr<link::Links> links)
    : position_(position),
      ranks_(std::move(ranks)),
      layout_(std::move(layout)),
      board_(std::move(board)),
      links_(std::move(links)) {}

Status Communicator::fail(const Status& status) {
  (void)board_->fail(status);
  if (links_) {
    const Status known = board_->known_failure();
    links_->abort(known);
    if (board_->claim_telling()) {
      std::vector<std::vector<int>> others = layout_.hosts;
      others.erase(others.begin() + layout_.host_of[static_cast<std::size_t>(position_)]);
      links_->spread_news(others, known);
    }
  }
  return board_->failure();
}

Status Communicator::wait_for_news() const {
  const Deadline limit = Clock::steady().in(kNewsMayTake);
  while (board_->known_failure().ok() && !limit.expired()) std::this_thread::sleep_for(1ms);
  return board_->known_failure();
}

void Communicator::leave(std::uint64_t sequence) {
  board_->leave(sequence);
  if (!links_) return;
  const Status failure = board_->failure();
  if (failure.ok()) {
    links_->leave();
  } else {
    links_->abort(failure);
  }
}

}  // namespace lockstep::transport
