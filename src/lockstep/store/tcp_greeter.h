// The connections of one listener that have not proven yet who they are.
//
// There are at most 64 of them; each gets 5 s for its handshake and holds less than 256 bytes. When all
// places are taken, one that has not even said hello for 100 ms, or has not finished in 1 s, makes room: idle
// connections cannot keep a client out, and a client that is merely slow is not thrown out while there is
// room. One log line per rejected peer per minute.
// Thread safety: none; lives on the server's loop, and may be destroyed there at any time but in its
// callbacks.
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/log.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/store/tcp_options.h"

namespace lockstep::store {

// The other end of a connection, for messages.
struct PeerName {
  std::string host;  // without the port, so that one who comes again is known
  std::string text;  // "10.0.0.1:4711", "process 1234 of user 1000"
  LocalSocket local = LocalSocket::kOff;
};

// One who has passed the handshake.
struct Guest {
  base::UniqueFd socket;
  std::unique_ptr<base::ForkGuard> guard;  // of the socket, until its new owner has its own
  PeerName peer;
  base::ClientClaim claim;
  std::optional<base::SessionKeys> keys;  // none over a local socket
  // Sent already, but to a local client: that one gets it together with its pipes.
  std::array<std::byte, base::kVerdictSize> verdict{};
};

class Greeter {
 public:
  struct Limits {
    std::size_t unproven = 64;
    Duration handshake = std::chrono::seconds(5);
    Duration silent_when_full = std::chrono::milliseconds(100);
    Duration unfinished_when_full = std::chrono::seconds(1);
  };
  struct Callbacks {
    base::ServerHandshake::Decide decide;
    std::function<base::Verdict(const base::ClientClaim&)> judge_proven;
    std::function<void(Guest)> admit;
    std::function<void()> has_room;              // there was none before
    std::function<void(std::string_view)> warn;  // writes a line to the owner's log
    // For a while no connection could be accepted.
    std::function<void(const Status&)> cannot_accept = [](const Status&) {};
  };

  Greeter(asio::io_context& loop, const Clock& clock, base::RateLimit& log_limit, const Limits& limits,
          Callbacks callbacks);
  ~Greeter();

  bool full() const { return greetings_.size() >= limits_.unproven; }
  // Only while not full(). `guard` is the socket's.
  void greet_on_loop(base::UniqueFd socket, std::unique_ptr<base::ForkGuard> guard, PeerName peer);
  void warn(std::string_view line) const { callbacks_.warn(line); }
  void report_cannot_accept(const Status& why) const { callbacks_.cannot_accept(why); }
  // One log line per host and minute.
  void log_rejection(const PeerName& peer, std::string_view why);

 private:
  struct Greeting;
  // Shared with the handler that waits for its next bytes, which may run after it was dropped.
  using GreetingPtr = std::shared_ptr<Greeting>;

  void wait_on_loop(const GreetingPtr& greeting);
  void read_on_loop(const GreetingPtr& greeting);
  // The message that was awaited is complete.
  void answer_hello_on_loop(const GreetingPtr& greeting);
  void answer_proof_on_loop(const GreetingPtr& greeting);
  void reject_on_loop(const GreetingPtr& greeting, std::string_view why);
  void drop_on_loop(const GreetingPtr& greeting);
  void sweep_on_loop();
  Duration allowance(const Greeting& greeting) const;

  asio::io_context& loop_;
  const Clock& clock_;
  base::RateLimit& log_limit_;
  const Limits limits_;
  const Callbacks callbacks_;
  asio::steady_timer sweep_;
  bool sweeping_ = false;
  // Tells the sweep's handler, which may be due already, that this is gone.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  std::list<GreetingPtr> greetings_;
};

}  // namespace lockstep::store
