#include "lockstep/store/tcp_greeter.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <utility>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

constexpr auto kSweepPeriod = std::chrono::milliseconds(50);

// The few bytes of a handshake always fit into the buffer of a fresh socket.
bool send_now(int socket, ByteView bytes) {
  const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size());
}

}  // namespace

struct Greeter::Greeting {
  Greeting(asio::io_context& loop, int fd, std::unique_ptr<base::ForkGuard> its_guard, PeerName name,
           base::ServerHandshake::Decide decide, base::TimePoint now)
      : socket(loop, fd),
        guard(std::move(its_guard)),
        peer(std::move(name)),
        handshake(std::move(decide)),
        since(now) {}

  enum class Awaits : std::uint8_t { kHello, kProof };
  std::size_t wanted() const { return awaits == Awaits::kHello ? base::kClientHelloSize : base::kProofSize; }

  asio::posix::stream_descriptor socket;
  std::unique_ptr<base::ForkGuard> guard;
  const PeerName peer;
  base::ServerHandshake handshake;
  const base::TimePoint since;
  Awaits awaits = Awaits::kHello;
  std::array<std::byte, base::kClientHelloSize> received{};
  std::size_t count = 0;
  bool dropped = false;
};

Greeter::Greeter(asio::io_context& loop, const Clock& clock, base::RateLimit& log_limit, const Limits& limits,
                 Callbacks callbacks)
    : loop_(loop),
      clock_(clock),
      log_limit_(log_limit),
      limits_(limits),
      callbacks_(std::move(callbacks)),
      sweep_(loop) {}

Greeter::~Greeter() {
  for (const GreetingPtr& greeting : greetings_) {
    greeting->dropped = true;
    asio::error_code ignored;
    greeting->socket.close(ignored);
  }
}

void Greeter::greet_on_loop(base::UniqueFd socket, std::unique_ptr<base::ForkGuard> guard, PeerName peer) {
  auto greeting = std::make_shared<Greeting>(loop_, socket.get(), std::move(guard), std::move(peer),
                                             callbacks_.decide, clock_.now());
  static_cast<void>(socket.release());  // the greeting's descriptor owns it now
  greetings_.push_back(greeting);
  if (!sweeping_) sweep_on_loop();
  // A client's hello is usually here already.
  read_on_loop(greeting);
}

void Greeter::wait_on_loop(const GreetingPtr& greeting) {
  greeting->socket.async_wait(asio::posix::stream_descriptor::wait_read,
                              [this, greeting](const asio::error_code& error) {
                                if (!error && !greeting->dropped) read_on_loop(greeting);
                              });
}

void Greeter::read_on_loop(const GreetingPtr& greeting) {
  while (!greeting->dropped) {
    const ByteSpan space = ByteSpan(greeting->received).first(greeting->wanted()).subspan(greeting->count);
    const ssize_t count = recv(greeting->socket.native_handle(), space.data(), space.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return wait_on_loop(greeting);
    if (count <= 0) {
      // A scan of the port says nothing, and there is nothing to say of it.
      if (greeting->count == 0 && greeting->awaits == Greeting::Awaits::kHello) return drop_on_loop(greeting);
      if (greeting->awaits == Greeting::Awaits::kProof) {
        return reject_on_loop(greeting, greeting->handshake.refusal_text());
      }
      return reject_on_loop(greeting, "it left in the middle of its hello");
    }
    greeting->count += static_cast<std::size_t>(count);
    if (greeting->count < greeting->wanted()) continue;
    greeting->count = 0;
    if (greeting->awaits == Greeting::Awaits::kHello) {
      answer_hello_on_loop(greeting);
    } else {
      return answer_proof_on_loop(greeting);
    }
  }
}

void Greeter::answer_hello_on_loop(const GreetingPtr& greeting) {
  base::ServerHandshake& handshake = greeting->handshake;
  const auto answer = handshake.on_client_hello(ByteView(greeting->received).first<base::kClientHelloSize>());
  const bool sent = send_now(greeting->socket.native_handle(), answer);
  if (handshake.verdict() != base::Verdict::kAccepted)
    return reject_on_loop(greeting, handshake.refusal_text());
  if (!sent) return reject_on_loop(greeting, "it does not take the answer to its hello");
  greeting->awaits = Greeting::Awaits::kProof;
}

void Greeter::answer_proof_on_loop(const GreetingPtr& greeting) {
  base::ServerHandshake& handshake = greeting->handshake;
  const auto answer = handshake.on_proof(ByteView(greeting->received).first<base::kProofSize>(),
                                         callbacks_.judge_proven(handshake.claim()));
  const bool with_pipes = handshake.accepted() && greeting->peer.local == LocalSocket::kOn;
  const bool sent = with_pipes || send_now(greeting->socket.native_handle(), answer);
  if (!handshake.accepted()) return reject_on_loop(greeting, handshake.refusal_text());
  if (!sent) return reject_on_loop(greeting, "it does not take the verdict");
  Guest guest{.socket = base::UniqueFd(greeting->socket.release()),
              .guard = std::move(greeting->guard),
              .peer = greeting->peer,
              .claim = handshake.claim(),
              .keys = {},
              .verdict = answer};
  if (!with_pipes) guest.keys = handshake.keys();
  drop_on_loop(greeting);
  callbacks_.admit(std::move(guest));
}

void Greeter::reject_on_loop(const GreetingPtr& greeting, std::string_view why) {
  log_rejection(greeting->peer, why);
  drop_on_loop(greeting);
}

void Greeter::log_rejection(const PeerName& peer, std::string_view why) {
  std::uint64_t suppressed = 0;
  if (!log_limit_.allow(peer.host, &suppressed)) return;
  std::string line = cat("rejected ", peer.text, ": ", why);
  if (suppressed > 0) line += cat(" (and ", suppressed, " more from there since the last line)");
  warn(line);
}

void Greeter::drop_on_loop(const GreetingPtr& greeting) {
  if (std::exchange(greeting->dropped, true)) return;
  const bool was_full = full();
  greeting->guard.reset();
  asio::error_code ignored;
  greeting->socket.close(ignored);
  std::erase(greetings_, greeting);
  if (was_full) callbacks_.has_room();
}

Duration Greeter::allowance(const Greeting& greeting) const {
  if (!full()) return limits_.handshake;
  const bool silent = greeting.awaits == Greeting::Awaits::kHello;
  return std::min(limits_.handshake, silent ? limits_.silent_when_full : limits_.unfinished_when_full);
}

void Greeter::sweep_on_loop() {
  // Oldest first; has_room() may add to the end.
  const base::TimePoint now = clock_.now();
  for (auto next = greetings_.begin(); next != greetings_.end();) {
    const GreetingPtr greeting = *next++;
    if (now - greeting->since < allowance(*greeting)) continue;
    reject_on_loop(greeting, "it did not finish its handshake in time");
  }
  sweeping_ = !greetings_.empty();
  if (!sweeping_) return;
  sweep_.expires_after(kSweepPeriod);
  sweep_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& stopped) {
    if (!stopped && !alive.expired()) sweep_on_loop();
  });
}

}  // namespace lockstep::store
