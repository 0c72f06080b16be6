// The Mail of a world is what its groups send messages with: one Messenger, and the transport under it.
//
// In a world of one it is made with the first message: until then there is no thread and no socket.
// Thread safety: any thread, once open() has returned.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/store/rendezvous.h"
#include "lockstep/store/watched_wait.h"
#include "lockstep/transport/messages/messenger.h"
#include "lockstep/transport/tcp/tcp_transport.h"

namespace lockstep::backend {

class Mail {
 public:
  // The rendezvous outlives it.
  Mail(const Rendezvous& rendezvous, transport::tcp::TcpTransportOptions options, const Clock& clock)
      : rendezvous_(rendezvous), options_(std::move(options)), clock_(clock) {}

  // In a world of several: listens, and meets the others in the store. Every rank calls it.
  Status open(const Deadline& deadline, const store::Look& look);

  Result<transport::messages::Messenger*> messenger();
  // As the Messenger's. Where no message was sent there is nothing to end.
  void fail_group(std::uint64_t group, const Status& why);
  void leave_group(std::uint64_t group);

 private:
  Status make(const Deadline& deadline, const store::Look& look) LOCKSTEP_REQUIRES(mutex_);

  const Rendezvous& rendezvous_;
  const transport::tcp::TcpTransportOptions options_;
  const Clock& clock_;
  Mutex mutex_;
  std::unique_ptr<transport::Transport> transport_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<transport::messages::Messenger> messenger_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backend
