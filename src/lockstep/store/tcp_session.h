// One authenticated client of a store's server.
//
// Reads what has come, hands each request to the tenant, and sends the answers of one batch together. Fair:
// at most 64 KiB are read per turn, then the others have theirs. A client that does not read its answers is
// not read from either; if answers still pile up beyond the limit (requests that waited), it is disconnected.
//
// Thread safety: none; lives on the server's loop.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/store/tcp_conduit.h"
#include "lockstep/store/tcp_frame.h"
#include "lockstep/store/tcp_greeter.h"
#include "lockstep/store/tcp_ready_set.h"
#include "lockstep/store/tcp_tenant.h"
#include "lockstep/store/tcp_waiters.h"
#include "lockstep/store/tcp_wire.h"

namespace lockstep::store {

class Session final : public Answers, public ReadySet::Watcher {
 public:
  // What the sessions of a server share.
  struct Shared {
    explicit Shared(std::size_t max_send_queue_bytes);

    const std::size_t max_send_queue;
    Buffer scratch;                // received bytes, until they are handled
    std::vector<Session*> unsent;  // have answers to send; the owner calls flush_on_loop()
    std::vector<Session*> closed;  // to be destroyed by the owner, after the batch
  };
  // Over a local socket it passes pipes to the client and goes on over these.
  Session(Shared& shared, ReadySet& ready_set, Tenant& tenant, Guest guest);
  ~Session() override;

  void has_ended_on_loop() override { ended_ = true; }
  void can_receive_on_loop() override;
  void can_send_on_loop() override;
  void flush_on_loop();
  // Idempotent. Nothing is read or answered any more.
  void close_on_loop();

  void done(std::uint64_t id) override;
  void value(std::uint64_t id, ByteView value) override;
  void number(std::uint64_t id, std::int64_t number) override;
  void flag(std::uint64_t id, bool flag) override;
  void list(std::uint64_t id, std::span<const ByteView> items) override;
  void error(std::uint64_t id, const Status& status) override;

 private:
  void read_on_loop();
  // False if the session is closed, or must not take more requests for now.
  bool handle_frames_on_loop();
  void close_on_loop(std::string_view why);
  std::size_t unsent() const { return out_.size() - sent_; }
  void account();
  template <typename Fill>
  void answer(Fill&& fill);

  Shared& shared_;
  ReadySet& ready_set_;
  Tenant& tenant_;
  const PeerName peer_;
  const Conduit conduit_;
  FrameReader reader_;
  FrameWriter writer_;
  Request request_;  // its memory serves every request
  Buffer out_;       // [sent_, end) is to be sent
  std::size_t sent_ = 0;
  std::size_t charged_ = 0;  // bytes that the tenant has been told of
  std::string overflow_;     // why it must be disconnected at the next flush
  bool in_unsent_ = false;
  bool paused_ = false;   // does not read until enough is sent
  bool writing_ = false;  // waits until the client has read some
  bool ended_ = false;    // the client's end is behind what has come
  bool closed_ = false;
};

}  // namespace lockstep::store
