// The socket on which the speakers of two hosts say that they live, and whom they have lost. Grammar:
// docs/wire/watch.md.
//
// Thread safety: none; the monitor's thread. Only say_goodbye() waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::backend {

struct WatchMessage {
  // The values are part of the wire format.
  enum class Kind : std::uint8_t { kBeat = 1, kLost = 2, kGoodbye = 3, kLeft = 4 };
  Kind kind = Kind::kBeat;
  Failure failure = Failure::kNone;  // kLost: kPeerDied, kPeerStalled or kPeerUnreachable
  Rank rank = {};                    // kLost, kLeft: who

  bool operator==(const WatchMessage&) const = default;
};

constexpr std::size_t kWatchMessageSize = 16;
std::array<std::byte, kWatchMessageSize> write_watch_message(const WatchMessage& message);
// kCorruptFrame if it does not follow the grammar.
Result<WatchMessage> parse_watch_message(std::span<const std::byte, kWatchMessageSize> bytes);

class WatchSocket {
 public:
  // `peer` is the speaker at the other end. One that acknowledges nothing for `limit` is unreachable.
  WatchSocket(UniqueFd socket, Rank peer, Duration limit);

  Rank peer() const { return peer_; }
  int fd() const { return socket_.get(); }
  // Best effort: a peer that does not read is one that will be found silent.
  void say(const WatchMessage& message);
  // The last word, and nothing after it. The peer has `deadline` to read it: closed earlier, with bytes of
  // the peer's unread, the socket would reset the connection, and the word might be lost. Gives what it says
  // meanwhile.
  std::vector<WatchMessage> say_goodbye(const Deadline& deadline);
  // What has come. An error if the connection has ended, which is final.
  Result<std::vector<WatchMessage>> listen();
  // Whether any message has come.
  bool has_spoken() const { return has_spoken_; }

 private:
  const UniqueFd socket_;
  const base::ForkGuard fork_guard_;
  const Rank peer_;
  int error_ = 0;  // that a send was told
  std::array<std::byte, kWatchMessageSize> in_{};
  std::size_t received_ = 0;
  bool has_spoken_ = false;
};

}  // namespace lockstep::backend
