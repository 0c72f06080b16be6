#include "lockstep/transport/lost.h"

#include <cerrno>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::transport {

Status connection_lost(int error) {
  switch (error) {
    case 0:
      return Status::disconnected(
          "the connection ended without a goodbye: the process there has died, or something on the way cut "
          "it",
          {.failure = Failure::kPeerDied});
    case ECONNRESET:
    case EPIPE:
      return Status::disconnected(
          cat("the connection was cut (", ::strerrordesc_np(error), "): the process there has probably died"),
          {.failure = Failure::kPeerDied});
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case ECONNABORTED:
      return Status::disconnected(cat("its host cannot be reached any more: ", ::strerrordesc_np(error)),
                                  {.failure = Failure::kPeerUnreachable});
    default:
      return Status::from_errno("the connection failed", error);
  }
}

}  // namespace lockstep::transport
