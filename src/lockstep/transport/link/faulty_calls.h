// Spoils what a rank's links do with their sockets: cuts them off, damages a bit, delivers byte by byte, or
// late. For tests and chaos runs.
//
//   FaultyCalls faults({.cut = LinkFaults::Cut{.after = 100, .how = LinkFaults::How::kReset}});
//   Links links({..., .calls = faults}, inbox);
//
// Bytes are counted over all that the rank sends on its links, from 0.
// Thread safety: as Links, whose thread calls it. The same seed is the same sequence of delays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>

#include "lockstep/base/clock.h"
#include "lockstep/transport/link/socket_calls.h"

namespace lockstep::transport::link {

struct LinkFaults {
  enum class How : std::uint8_t {
    kEnd,    // FIN: the peer reads what was sent, and then the end
    kReset,  // RST
  };
  struct Cut {
    std::uint64_t after = 0;  // bytes
    How how = How::kEnd;
  };
  std::optional<Cut> cut = {};
  std::optional<std::uint64_t> flip = {};                      // the number of the bit that arrives wrong
  std::size_t most = std::numeric_limits<std::size_t>::max();  // bytes that a call moves
  Duration jitter = {};          // up to so long after a call no byte moves in its direction
  Duration connect_jitter = {};  // and so long a connection is held back
  std::uint64_t seed = 0;
};

class FaultyCalls final : public SocketCalls {
 public:
  explicit FaultyCalls(const LinkFaults& faults, const Clock& clock = Clock::steady());

  ssize_t send(int socket, const msghdr& message) override;
  ssize_t recv(int socket, msghdr& message) override;
  void connecting(Rank peer) override;

  std::uint64_t sent() const { return sent_; }

 private:
  Duration draw(Duration most);
  // Whether the direction that is quiet until `until` moves no byte now; if it does, for how long it is quiet
  // next.
  bool held(base::TimePoint& until);
  void cut_off(int socket);

  const LinkFaults faults_;
  const Clock& clock_;
  std::mt19937_64 random_;
  std::uint64_t sent_ = 0;
  std::optional<int> dead_;  // the socket that was cut off
  base::TimePoint out_quiet_until_{};
  base::TimePoint in_quiet_until_{};
};

}  // namespace lockstep::transport::link
