#include "lockstep/transport/link/socket_calls.h"

namespace lockstep::transport::link {
namespace {

class KernelCalls final : public SocketCalls {
 public:
  ssize_t send(int socket, const msghdr& message) override {
    return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t recv(int socket, msghdr& message) override { return ::recvmsg(socket, &message, MSG_DONTWAIT); }
  void connecting(Rank) override {}
};

}  // namespace

SocketCalls& SocketCalls::kernel() {
  static KernelCalls calls;
  return calls;
}

}  // namespace lockstep::transport::link
