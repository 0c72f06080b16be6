// A Neighbour is the connection to another rank of this host: a pair of pipes.
//
// Nothing moves by itself: whoever has its turn on the strand calls move_on_strand().
//
// Thread safety: none; lives on the strand, where its callbacks run too.
// Does not: look at deadlines; the messenger gives none.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>

#include "lockstep/transport/connection.h"
#include "lockstep/transport/messages/checked_pipe.h"
#include "lockstep/transport/messages/strand.h"
#include "lockstep/transport/shm/pipes.h"

namespace lockstep::transport::messages {

class Neighbour final : public Connection {
 public:
  // The pipes are shared with whoever still sleeps on the bell. `position` is the neighbour's in the domain.
  Neighbour(Strand& strand, std::shared_ptr<shm::Pipes> pipes, int position);

  void send(ByteView bytes, const Deadline& deadline, Done done) override;
  void recv(ByteSpan bytes, const Deadline& deadline, Done done) override;
  void close() override { close(shm::Pipes::Why::kLeft); }
  const Peer& peer() const override { return peer_; }

  // As close(), which does nothing afterwards; the other side hears why.
  void close(shm::Pipes::Why why);

  // Moves what can be moved at once, up to a limit. True if there was something.
  bool move_on_strand();

  // Offers, as Pipes has them. `offset_of`: where bytes of ours lie in our heap, if they do.
  // Where they are checked nothing is offered: it would be copied from where it may change.
  std::optional<std::uint64_t> offset_of(ByteView bytes) const {
    if (checked_) return std::nullopt;
    return pipes_->domain().heap().offset_of(bytes.data(), Bytes{bytes.size()});
  }
  void offer(std::uint64_t id) { pipes_->offer(position_, id); }
  bool revoke(std::uint64_t id) { return pipes_->revoke(position_, id); }
  const std::byte* offered(std::uint64_t offset, std::uint64_t size) const {
    return pipes_->offered(position_, offset, Bytes{size});
  }
  bool take(std::uint64_t id) { return pipes_->take(position_, id); }

 private:
  template <typename Span>
  struct Transfer {
    Span rest = {};
    Done done = {};
  };
  Result<std::size_t> write_out(ByteView bytes) {
    return checked_ ? checked_->write(bytes) : pipes_->write(position_, bytes);
  }
  Result<std::size_t> read_in(ByteSpan bytes) {
    return checked_ ? checked_->read(bytes) : pipes_->read(position_, bytes);
  }
  std::size_t write_on_strand();
  std::size_t read_on_strand();
  void fail_on_strand(const Status& why);

  Strand& strand_;
  const std::shared_ptr<shm::Pipes> pipes_;
  const int position_;
  const Peer peer_;
  std::optional<CheckedPipe> checked_;  // where the pipes' options say so
  std::deque<Transfer<ByteView>> sends_;
  std::deque<Transfer<ByteSpan>> receives_;
  Status failure_;
  bool closed_ = false;
};

}  // namespace lockstep::transport::messages
