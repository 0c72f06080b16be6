// Every member of a host gives every other one a file descriptor, over abstract unix sockets.
//
// Each listens under a random name that it publishes in the store; of two members the later one in the list
// connects. Before a descriptor passes, the kernel has said that the other side runs as the same user, and
// the handshake (Role::kHeap) that it belongs to the job.
//
// Thread safety: one call per member; blocks until all have come or the deadline passes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/secret.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/store/store.h"
#include "lockstep/store/watched_wait.h"

namespace lockstep::transport::shm {

struct DescriptorExchange {
  std::vector<Rank> members;
  int index = 0;
  std::string job_id;
  std::uint64_t epoch = 0;
  Secret secret = Secret::insecure();
  int descriptor = -1;        // stays the caller's
  std::string name = "heap";  // where they meet in the store; used once
  store::Look look = {};      // what ends the wait for members that have not come, or do not answer
};

// One descriptor for each other member, in the order of `members`; an empty one at our own place. kTimeout
// names the ranks that did not come; any other error in meeting one of them has it as its cause's peer.
Result<std::vector<UniqueFd>> exchange_descriptors(const DescriptorExchange& exchange, store::Store& store,
                                                   const Deadline& deadline);

}  // namespace lockstep::transport::shm
