// What a rank's links do where its plan spoils them: as FaultyCalls, and the first spoilt byte is reported
// ("inject").
//
// Thread safety: as Links, whose thread calls it: of one group.
#pragma once

#include <cstdint>

#include "lockstep/base/types.h"
#include "lockstep/transport/link/faulty_calls.h"
#include "plan.h"

namespace lockstep::chaos {

class SpoiltLinks final : public transport::link::SocketCalls {
 public:
  SpoiltLinks(const Plan& plan, Rank rank);

  ssize_t send(int socket, const msghdr& message) override;
  ssize_t recv(int socket, msghdr& message) override;
  void connecting(Rank peer) override;

 private:
  transport::link::FaultyCalls calls_;
  const std::uint64_t first_;  // so many bytes are sent as they should be
  bool reported_ = false;
};

}  // namespace lockstep::chaos
