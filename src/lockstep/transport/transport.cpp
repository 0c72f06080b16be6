#include "lockstep/transport/transport.h"

#include "lockstep/base/text.h"

namespace lockstep::transport {

std::string Peer::text() const { return rank ? cat("rank ", *rank, " (", host, ")") : host; }

std::string Identity::text() const { return rank ? cat("rank ", *rank) : "this process"; }

}  // namespace lockstep::transport
