// What a failed send or recv means, for a connection that was up.
#pragma once

#include "lockstep/base/status.h"

namespace lockstep::transport {

// `error` is errno, 0 for an end of the stream. kDisconnected with kPeerDied or kPeerUnreachable; the message
// is the end of a sentence about the peer.
Status connection_lost(int error);

}  // namespace lockstep::transport
