// Where the agents of several hosts meet: one of them serves a store at --rdzv-endpoint, the others are its
// clients, and each gets its node rank.
//
// Thread safety: free functions, on the coordinator's own thread: they wait.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/net.h"
#include "lockstep/base/secret.h"
#include "lockstep/launch/agent_message.h"
#include "lockstep/launch/options.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {

struct MeetingOptions {
  base::Endpoint endpoint = {};
  std::string local_addr = {};  // what node 0 binds instead of the endpoint's address
  std::optional<int> node_rank = {};
  Secret secret = Secret::insecure();
  JobCard card = {};  // what this agent would say, were it node 0
  std::string host = {};
};

struct Meeting {
  store::HostedStore hosted = {};    // node 0: with the server
  base::SocketAddress address = {};  // node 0: as it is bound, for rank 0's sockets
  JobCard card = {};                 // node 0's
  int node = 0;

  Store& store() const { return *hosted.store; }
};

// Called while it waits, with what for and why; true ends it with kAborted.
using GiveUp = std::function<bool(std::string_view waiting_for)>;

// Serves if the endpoint is an address of this host and node_rank, if given, is 0; by arrival, who binds
// first serves. A name that cannot be looked up yet is tried again until the deadline, by every agent. Errors
// name who is in the way: a port that is taken and by whom, a node rank that two hosts claim, unequal
// --nnodes, one agent too many, a wrong secret.
Result<Meeting> meet(const MeetingOptions& options, const Deadline& deadline, const GiveUp& give_up);

// The address of `endpoint` that belongs to this host, if any does.
Result<std::optional<base::SocketAddress>> own_address(const base::Endpoint& endpoint,
                                                       const Deadline& deadline);

}  // namespace lockstep::launch
