// One authenticated client of a store's server.
//
// Reads what has come, hands each request to the tenant, and sends the answers of one turn together. Fair: at
// most 64 KiB are read per turn, then the others have theirs. A client that does not read its answers is not
// read from either; if answers still pile up beyond the limit (requests that waited), it is disconnected.
//
// Thread safety: none; lives on the server's loop.
// Ownership: shared by the handlers that wait for its socket; it goes when the last of them has run.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/base/fork_guard.h"
#include "lockstep/store/tcp_frame.h"
#include "lockstep/store/tcp_greeter.h"
#include "lockstep/store/tcp_tenant.h"
#include "lockstep/store/tcp_waiters.h"
#include "lockstep/store/tcp_wire.h"

namespace lockstep::store {

class Session;

// Sessions with answers that are not sent yet. Whoever has worked on a turn flushes them at its end.
class Outbound {
 public:
  void add(std::shared_ptr<Session> session) { sessions_.push_back(std::move(session)); }
  void flush_on_loop();
  void clear() { sessions_.clear(); }

 private:
  std::vector<std::shared_ptr<Session>> sessions_;
};

class Session final : public Answers, public std::enable_shared_from_this<Session> {
 public:
  struct Context {
    asio::io_context& loop;
    Outbound& outbound;
    std::unordered_set<Session*>& sessions;  // all that live
    std::size_t max_send_queue;
    std::function<void()> after_turn;  // deadlines may have changed
  };
  Session(const Context& context, Tenant& tenant, Guest guest);
  ~Session() override;

  void start_on_loop() { wait_to_read_on_loop(); }
  void flush_on_loop();
  // Idempotent. Nothing is answered any more.
  void close_on_loop();

  void done(std::uint64_t id) override;
  void value(std::uint64_t id, ByteView value) override;
  void number(std::uint64_t id, std::int64_t number) override;
  void flag(std::uint64_t id, bool flag) override;
  void list(std::uint64_t id, std::span<const ByteView> items) override;
  void error(std::uint64_t id, const Status& status) override;

 private:
  void wait_to_read_on_loop();
  void wait_to_write_on_loop();
  void read_on_loop();
  // False once the session is closed or must not read on for now.
  bool handle_frames_on_loop();
  void close_on_loop(std::string_view why);
  std::size_t unsent() const { return out_.size() - sent_; }
  void account();
  template <typename Fill>
  void answer(Fill&& fill);

  const Context& context_;
  Tenant& tenant_;
  const PeerName peer_;
  asio::posix::stream_descriptor socket_;
  const base::ForkGuard fork_guard_;
  FrameReader reader_;
  FrameWriter writer_;
  Request request_;  // its memory serves every request
  Buffer out_;       // [sent_, end) is to be sent
  std::size_t sent_ = 0;
  std::size_t charged_ = 0;  // bytes that the tenant has been told of
  std::string overflow_;     // why it must be disconnected at the next flush
  bool reading_ = false;     // a wait is under way
  bool writing_ = false;
  bool in_outbound_ = false;
  bool closed_ = false;
};

}  // namespace lockstep::store
