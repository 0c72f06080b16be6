#include "lockstep/transport/messages/neighbour.h"

#include <utility>

namespace lockstep::transport::messages {
namespace {

// What one call reads, about: others wait for their turn meanwhile. A pipe holds no more for writing.
constexpr std::size_t kMoveLimit = 256U << 10;

}  // namespace

Neighbour::Neighbour(Strand& strand, std::shared_ptr<shm::Pipes> pipes, int position)
    : strand_(strand),
      pipes_(std::move(pipes)),
      position_(position),
      peer_{.rank = pipes_->domain().rank_of(position), .host = "shared memory"} {
  if (pipes_->payload_checks() == shm::PayloadChecks::kOn) checked_.emplace(*pipes_, position_);
}

void Neighbour::send(ByteView bytes, const Deadline&, Done done) {
  if (!failure_.ok()) return strand_.post([this, done = std::move(done)] { done(failure_); });
  sends_.push_back({.rest = bytes, .done = std::move(done)});
  if (sends_.size() == 1) strand_.post([this] { (void)write_on_strand(); });
}

void Neighbour::recv(ByteSpan bytes, const Deadline&, Done done) {
  if (!failure_.ok()) return strand_.post([this, done = std::move(done)] { done(failure_); });
  receives_.push_back({.rest = bytes, .done = std::move(done)});
}

bool Neighbour::move_on_strand() {
  const std::size_t written = write_on_strand();
  return read_on_strand() + written > 0;
}

std::size_t Neighbour::write_on_strand() {
  std::size_t moved = 0;
  while (failure_.ok() && !sends_.empty()) {
    Transfer<ByteView>& transfer = sends_.front();
    const auto written = write_out(transfer.rest);
    if (!written.ok()) {
      if (pipes_->has_closed(position_) && !receives_.empty()) break;  // what it wrote before is read first
      fail_on_strand(written.status());
      return moved + 1;
    }
    moved += *written;
    transfer.rest = transfer.rest.subspan(*written);
    if (!transfer.rest.empty()) break;
    const Done done = std::move(transfer.done);
    sends_.pop_front();
    done({});
  }
  return moved;
}

std::size_t Neighbour::read_on_strand() {
  std::size_t moved = 0;
  while (failure_.ok() && !receives_.empty() && moved < kMoveLimit) {
    Transfer<ByteSpan>& transfer = receives_.front();
    const auto read = read_in(transfer.rest);
    if (!read.ok()) {
      fail_on_strand(read.status());
      return moved + 1;
    }
    moved += *read;
    transfer.rest = transfer.rest.subspan(*read);
    if (!transfer.rest.empty()) break;
    const Done done = std::move(transfer.done);
    receives_.pop_front();
    done({});
  }
  return moved;
}

void Neighbour::fail_on_strand(const Status& why) {
  if (failure_.ok()) failure_ = why;
  for (auto& transfer : std::exchange(sends_, {})) transfer.done(failure_);
  for (auto& transfer : std::exchange(receives_, {})) transfer.done(failure_);
}

void Neighbour::close(shm::Pipes::Why why) {
  if (closed_) return;
  closed_ = true;
  pipes_->close(position_, why);
  strand_.post([this] {
    fail_on_strand(Status::aborted("the connection was closed on this side", {.failure = Failure::kClosed}));
  });
}

}  // namespace lockstep::transport::messages
