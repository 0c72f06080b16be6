// Descriptors that travel with bytes from one process to another, over a unix socket.
//
// Thread safety: free functions, any thread. They allocate nothing, so a forked child may call them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "lockstep/base/bytes.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::base {

constexpr std::size_t kMaxPassedDescriptors = 2;

// As sendmsg(2): how many bytes were sent, -1 and errno. The descriptors, at most kMaxPassedDescriptors, go
// with the first of them, and stay open here. Never raises SIGPIPE.
ssize_t send_descriptors(int socket, ByteView bytes, std::span<const int> descriptors, int flags = 0);

// As recvmsg(2): how many bytes have come, 0 at the end, -1 and errno. `descriptors` are filled in order;
// those that did not come stay empty: the peer sent fewer, or this process has no room for more.
ssize_t receive_descriptors(int socket, ByteSpan bytes, std::span<UniqueFd> descriptors, int flags = 0);

}  // namespace lockstep::base
