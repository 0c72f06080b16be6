// The Mail of a world is what its groups send messages with: one Messenger, the pipes to the ranks of this
// host with their Attendant, and the transport to other hosts. Where all ranks share a host nobody listens.
//
// In a world of one it is made with the first message: until then there is no thread and no socket.
// Thread safety: any thread, once open() has returned.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/collective/tuning.h"
#include "lockstep/store/rendezvous.h"
#include "lockstep/store/watched_wait.h"
#include "lockstep/transport/messages/messenger.h"
#include "lockstep/transport/shm/domain.h"
#include "lockstep/transport/shm/pipes.h"
#include "lockstep/transport/tcp/tcp_transport.h"

namespace lockstep::backend {

class Mail {
 public:
  // The rendezvous outlives it. `failed` is the Messenger's. The domain, nothing in a world of one, is shared
  // with whoever still waits for a message.
  Mail(const Rendezvous& rendezvous, transport::tcp::TcpTransportOptions options,
       std::shared_ptr<transport::shm::Domain> domain, const transport::shm::Patience& patience,
       transport::shm::PayloadChecks payload, const collective::Tuning& tuning, Duration stall_after,
       transport::messages::Received failed, const Clock& clock)
      : rendezvous_(rendezvous),
        options_(std::move(options)),
        domain_(std::move(domain)),
        patience_(patience),
        payload_(payload),
        tuning_(tuning),
        stall_after_(stall_after),
        failed_(std::move(failed)),
        clock_(clock) {}
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  // In a world of several: meets the members in the store, under `name`, which is used once. Each of them
  // calls it. After close(), once all of them have closed, it begins anew, with those that are left.
  Status open(const std::vector<Rank>& members, const std::string& name, const Deadline& deadline,
              const store::Look& look);
  // Fails what is pending; afterwards nothing of ours touches shared memory.
  void close();
  // As close(), for good: who asks for the messenger later gets `why`.
  void end(const Status& why);

  // Shared: one who uses it just now may find it closed, but not gone.
  using MessengerPtr = std::shared_ptr<transport::messages::Messenger>;
  Result<MessengerPtr> messenger();
  // As the Messenger's. Where no message was sent there is nothing to end.
  void fail_group(std::uint64_t group, const Status& why);
  void leave_group(std::uint64_t group);
  // A rank has left the world. False if the mail is not open.
  bool seek(Rank rank);

 private:
  bool is_neighbour(Rank rank) const;
  Status make_transport() LOCKSTEP_REQUIRES(mutex_);
  Status make_pipes() LOCKSTEP_REQUIRES(mutex_);
  // Where messages come in, and where the others' do.
  struct Place {
    transport::Transport* transport = nullptr;
    std::shared_ptr<transport::shm::Pipes> pipes = {};
    std::unique_ptr<transport::Listener> listener = {};
    std::vector<base::Endpoint> endpoints = {};  // by rank; empty for neighbours
  };
  // Tells the members where we are, and asks where they are.
  Status meet(Place& place, const std::vector<Rank>& members, const std::string& name,
              const Deadline& deadline, const store::Look& look) const;
  Status make_messenger() LOCKSTEP_REQUIRES(mutex_);

  const Rendezvous& rendezvous_;
  const transport::tcp::TcpTransportOptions options_;
  const std::shared_ptr<transport::shm::Domain> domain_;
  const transport::shm::Patience patience_;
  const transport::shm::PayloadChecks payload_;
  const collective::Tuning tuning_;
  const Duration stall_after_;  // how long the monitor may take to notice
  const transport::messages::Received failed_;
  const Clock& clock_;
  Mutex mutex_;
  std::unique_ptr<transport::Transport> transport_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<transport::Listener> listener_ LOCKSTEP_GUARDED_BY(mutex_);  // until the messenger has it
  std::vector<base::Endpoint> endpoints_ LOCKSTEP_GUARDED_BY(mutex_);  // by rank; empty for neighbours
  std::shared_ptr<transport::shm::Pipes> pipes_ LOCKSTEP_GUARDED_BY(mutex_);
  MessengerPtr messenger_ LOCKSTEP_GUARDED_BY(mutex_);
  Status ended_ LOCKSTEP_GUARDED_BY(mutex_);
  // The last one: it goes first.
  std::unique_ptr<transport::messages::Attendant> attendant_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backend
