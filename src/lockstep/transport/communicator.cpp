#include "lockstep/transport/communicator.h"

#include <algorithm>
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
      links_(std::move(links)) {
  if (links_) board_->look_also([this] { return links_->look_for_strays(); });
}

Status Communicator::fail(const Status& status) {
  (void)board_->fail(status);
  if (links_) {
    const Status known = board_->known_failure();
    links_->abort(known);
    // A rank that has no socket left leaves the telling to its neighbours.
    const bool cannot_tell =
        known.failure() == Failure::kNoDescriptors && known.cause().peer == rank_of(position_);
    if (!cannot_tell) tell(known);
  }
  return board_->failure();
}

void Communicator::tell(const Status& failure) {
  const std::vector<link::Links::Host> others = who_can_be_told(failure);
  if (!board_->claim_telling()) return;
  try {
    board_->end_telling(
        links_->spread_news(others, failure, [this](const Status& answer) { board_->hear(answer); }));
  } catch (...) {  // there is no memory: whoever comes next tells them
    board_->give_back_telling();
    throw;
  }
  tell_whom_it_names(failure);
}

// Who is taken for dead because a connection broke may live, and waits for the others. A dead one refuses.
void Communicator::tell_whom_it_names(const Status& failure) const {
  if (failure.failure() != Failure::kPeerDied) return;
  for (std::size_t member = 0; member < layout_.host_of.size(); ++member) {
    const bool elsewhere = layout_.host_of[member] != layout_.host_of[static_cast<std::size_t>(position_)];
    if (elsewhere && rank_of(static_cast<int>(member)) == failure.cause().peer)
      links_->spread_news({{.members = {static_cast<int>(member)}}}, failure, [](const Status&) {});
  }
}

// Of every other host the members, but for the one that is lost. Where one cannot be reached, a host may be
// cut off as a whole, or that one alone may be at a loss: one member of each host is tried.
std::vector<link::Links::Host> Communicator::who_can_be_told(const Status& failure) const {
  std::vector<link::Links::Host> others;
  for (std::size_t host = 0; host < layout_.hosts.size(); ++host) {
    if (static_cast<int>(host) == layout_.host_of[static_cast<std::size_t>(position_)]) continue;
    std::vector<int> members = layout_.hosts[host];
    const bool unreachable = failure.failure() == Failure::kPeerUnreachable;
    const auto named = std::find_if(members.begin(), members.end(),
                                    [&](int member) { return rank_of(member) == failure.cause().peer; });
    bool all = true;
    // One that has made another call, or has said that it fails, lives and must hear it.
    if (named != members.end() && failure.code() == Code::kDisconnected) {
      all = failure.failure() == Failure::kPeerDied;
      members.erase(named);
    }
    if (unreachable && members.size() > 1) {
      all = false;
      members.resize(1);
    }
    others.push_back({.members = std::move(members), .all = all});
  }
  return others;
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
