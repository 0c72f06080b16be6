// A Wire over a TCP socket whose bytes travel in records.
//
// At first it exchanges the introductions, in sealed records; then the records have the protection that both
// asked for. Closing on purpose sends a goodbye and lingers for a second, so that what was sent arrives even
// if the peer is sending too (a socket that is closed with unread bytes is reset, and loses what it had to
// send).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "lockstep/base/handshake.h"
#include "lockstep/transport/tcp/record.h"
#include "lockstep/transport/tcp/socket.h"
#include "lockstep/transport/wire.h"

namespace lockstep::transport::tcp {

class TcpWire;

// The wires of one transport that linger. Lives on the loop.
class Lingering {
 public:
  void add(std::shared_ptr<TcpWire> wire) { wires_.insert(std::move(wire)); }
  void remove(const std::shared_ptr<TcpWire>& wire) { wires_.erase(wire); }
  std::size_t size() const { return wires_.size(); }
  // Cuts them all off.
  void end_on_loop();

 private:
  std::set<std::shared_ptr<TcpWire>> wires_;
};

class TcpWire final : public Wire, public std::enable_shared_from_this<TcpWire> {
 public:
  struct Keys {
    base::SealKey send;
    base::SealKey recv;
  };
  TcpWire(Loop& loop, Lingering& lingering, std::unique_ptr<Socket> socket, const Keys& keys);

  // Kept until the socket is closed: a place among the connections that a listener allows.
  void hold(std::shared_ptr<void> ticket) { ticket_ = std::move(ticket); }

  // Before anything else. Sends `own` as far as it goes; the other end's, or nothing for now (`wake`
  // follows).
  Result<std::optional<Introduction>> introduce_on_loop(const Introduction& own);

  void start_on_loop(std::function<void()> wake) override { wake_ = std::move(wake); }
  Result<std::size_t> write_on_loop(ByteView bytes) override;
  std::uint64_t taken() const override { return flushed_ + unsent(); }
  Result<std::uint64_t> flush_on_loop() override;
  Result<std::size_t> read_on_loop(ByteSpan bytes) override;
  void close_on_loop() override;

  // Without a goodbye.
  void cut_on_loop();

 private:
  std::size_t unsent() const { return out_.size() - sent_; }
  void wait_to_read_on_loop();
  void wait_to_write_on_loop();
  void linger_on_loop();

  Lingering& lingering_;
  const std::unique_ptr<Socket> socket_;
  Timer linger_timer_;
  const Clock& clock_;
  std::unique_ptr<RecordReader> reader_;
  std::unique_ptr<RecordWriter> writer_;
  std::function<void()> wake_;
  Buffer out_;  // [sent_, end) is to be sent
  std::size_t sent_ = 0;
  std::uint64_t flushed_ = 0;
  ByteView payload_;  // of the last record, the part that was not read yet
  bool goodbye_ = false;
  std::shared_ptr<void> ticket_;
  std::size_t introduction_ = 0;  // bytes of the other end's introduction that have come
  enum class State : std::uint8_t { kFresh, kIntroducing, kOpen, kLingering, kClosed } state_ = State::kFresh;
};

}  // namespace lockstep::transport::tcp
