// The client's end of a connection to a store's server: many calls at a time, from any thread.
//
// There is no thread behind it. Of the threads that wait for an answer one, the leader, reads the socket and
// hands the others theirs; when its own answer has come it makes one of those who still wait the leader. A
// call of one thread alone is one send and one receive on that thread.
//
// Thread safety: every method may be called from any thread.
// Errors: the first loss of the connection is final; every call that waits, and every later one, reports it
// as kDisconnected with kStoreLost. In a child that was forked after the connection was made every call is
// kInvalid with kForked, at once.
// Does not: reconnect, or send anything again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_conduit.h"
#include "lockstep/store/tcp_connect.h"
#include "lockstep/store/tcp_frame.h"
#include "lockstep/store/tcp_wire.h"

namespace lockstep::store {

class Channel {
 public:
  // Messages name the server "TcpStore <server>".
  Channel(Connected connection, std::string server);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Sends the request (its id is chosen here) and waits for the answer until `guard`. `on_body` gets the body
  // of a good answer before call() returns, on whichever thread reads, with no lock held. After a timeout the
  // server is told to forget the request.
  using OnBody = std::function<Status(ByteView body)>;
  Status call(Request& request, const Deadline& guard, const OnBody& on_body);

  // Sends a set or queue_push and returns once the kernel has it. The server answers only if it fails; the
  // first call or post that begins after such an answer has come reports it, and is not executed. When more
  // than kMaxUnconfirmed bytes would be on their way, it waits for the answer like call().
  Status post(Request& request, const Deadline& guard);

  // True if something posted may not have been executed yet.
  bool has_unconfirmed();

 private:
  struct Call;
  // No more than the server reads of one client in one turn, so that what was posted is executed before what
  // another client sends afterwards.
  static constexpr std::size_t kMaxUnconfirmed = 32U << 10;

  Status check_usable() LOCKSTEP_REQUIRES(mutex_);
  // Seals the request into the outbox and sends what the kernel takes; waits for room until `guard`, and
  // reads meanwhile if nobody else does, since a server that cannot send does not read.
  Status send_request(const Request& request, const Deadline& guard) LOCKSTEP_REQUIRES(mutex_);
  Status flush(Op op, const Deadline& guard) LOCKSTEP_REQUIRES(mutex_);
  // False if the socket takes no more for now.
  bool send_some() LOCKSTEP_REQUIRES(mutex_);
  Status await(Call& call, const Deadline& guard) LOCKSTEP_REQUIRES(mutex_);
  Status give_up(Call& call) LOCKSTEP_REQUIRES(mutex_);

  // One turn as leader; the lock is released while it lasts. With POLLOUT among `events` it ends also when
  // the socket can be written.
  void lead(short events, const Deadline& guard) LOCKSTEP_REQUIRES(mutex_);
  Status receive(short events, const Deadline& guard) LOCKSTEP_EXCLUDES(mutex_);
  void deliver(const Response& response) LOCKSTEP_EXCLUDES(mutex_);
  void promote_another() LOCKSTEP_REQUIRES(mutex_);
  void fail(const Status& failure) LOCKSTEP_REQUIRES(mutex_);

  Status forked() const;
  Status lost(std::string_view how) const;
  Status no_answer(Op op) const;

  const Conduit conduit_;
  const std::string server_;

  Mutex mutex_;
  Status failure_ LOCKSTEP_GUARDED_BY(mutex_);  // of the connection; final
  Status refusal_ LOCKSTEP_GUARDED_BY(mutex_);  // of an earlier post; to be reported once
  FrameWriter writer_ LOCKSTEP_GUARDED_BY(mutex_);
  Buffer outbox_ LOCKSTEP_GUARDED_BY(mutex_);  // sealed, not yet taken by the kernel
  std::uint64_t next_id_ LOCKSTEP_GUARDED_BY(mutex_) = 1;
  std::vector<Call*> calls_ LOCKSTEP_GUARDED_BY(mutex_);  // that wait; few, so a plain list
  bool has_leader_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::uint64_t posted_ LOCKSTEP_GUARDED_BY(mutex_) = 0;     // bytes, ever
  std::uint64_t confirmed_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of these, executed for certain

  FrameReader reader_;  // the leader's alone
};

}  // namespace lockstep::store
