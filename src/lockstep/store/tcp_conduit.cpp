#include "lockstep/store/tcp_conduit.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lockstep/base/descriptor_passing.h"
#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

// What the server says after its verdict.
constexpr std::byte kStay{0};
constexpr std::byte kPipes{1};
constexpr std::size_t kPassed = 2;  // the client's sending and receiving end, in this order

struct Pipe {
  base::UniqueFd out;  // to read from
  base::UniqueFd in;
};

bool make_pipe(Pipe& pipe) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return false;
  pipe.out.reset(ends[0]);
  pipe.in.reset(ends[1]);
  return true;
}

// The verdict, then which way the connection goes on.
using Message = std::array<std::byte, base::kVerdictSize + 1>;

Message message_of(const Conduit::VerdictBytes& verdict, std::byte way) {
  Message message;
  std::ranges::copy(verdict, message.begin());
  message.back() = way;
  return message;
}

// A new reading end of the pipe that `writing` writes to.
base::UniqueFd reading_end_of(int writing) {
  return base::UniqueFd(open(cat("/proc/self/fd/", writing).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

}  // namespace

Conduit::Conduit(base::UniqueFd socket) : receiving_(std::move(socket)) { guard(receiving_.get()); }

Conduit::Conduit(base::UniqueFd receiving, base::UniqueFd sending)
    : receiving_(std::move(receiving)), sending_(std::move(sending)) {
  guard(receiving_.get());
  guard(sending_.get());
}

void Conduit::guard(int descriptor) { guards_.push_back(std::make_unique<base::ForkGuard>(descriptor)); }

ssize_t Conduit::receive(ByteSpan bytes) const {
  if (is_socket()) return recv(receiving_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  return read(receiving_.get(), bytes.data(), bytes.size());
}

ssize_t Conduit::send(ByteView bytes) const {
  if (is_socket()) return ::send(receiving_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return write(sending_.get(), bytes.data(), bytes.size());
}

Conduit Conduit::offer_pipes(base::UniqueFd socket, const VerdictBytes& verdict) {
  // A child must get neither our ends nor, for the moment that we hold them, the client's.
  const base::ForkLock until_they_are_guarded;
  Pipe requests;
  Pipe answers;
  if (make_pipe(requests) && make_pipe(answers)) {
    // Guarded before the client has its ends: from then on it may count on hearing our end, whoever forks.
    Conduit pipes(std::move(requests.out), std::move(answers.in));
    const Message message = message_of(verdict, kPipes);
    const std::array<int, kPassed> theirs = {requests.in.get(), answers.out.get()};
    const ssize_t sent = base::send_descriptors(socket.get(), message, theirs, MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(message.size())) return pipes;
  }
  Conduit stays(std::move(socket));
  // If not even this goes out, the client has gone, and the socket will say so.
  stays.send(message_of(verdict, kStay));
  return stays;
}

Result<Conduit::Offer> Conduit::accept_pipes(base::UniqueFd socket, const Deadline& deadline) {
  pollfd descriptor{.fd = socket.get(), .events = POLLIN, .revents = 0};
  while (poll(&descriptor, 1, deadline.poll_millis()) <= 0) {
    if (deadline.expired()) return Status::timeout("The store's verdict did not come in time");
  }
  const base::ForkLock until_they_are_guarded;
  Message message{};
  std::array<base::UniqueFd, kPassed> passed;
  const ssize_t count = base::receive_descriptors(socket.get(), message, passed, MSG_DONTWAIT);
  if (count < 0) return Status::from_errno("The store's verdict did not come", errno);
  if (count < static_cast<ssize_t>(base::kVerdictSize)) {
    return Status::disconnected("The store left before it said its verdict");
  }
  Offer offer{.verdict = {}, .conduit = Conduit(std::move(socket))};
  std::copy_n(message.begin(), offer.verdict.size(), offer.verdict.begin());
  // A refusal comes alone.
  const bool alone = count == static_cast<ssize_t>(base::kVerdictSize);
  if (alone || message.back() == kStay) return offer;
  auto& [sending, receiving] = passed;
  if (message.back() != kPipes || !sending || !receiving) {
    return Status::from_errno("The store's pipes could not be taken over", EMFILE);
  }
  offer.conduit = Conduit(std::move(receiving), std::move(sending));
  offer.conduit.keeper_ = reading_end_of(offer.conduit.sending());
  if (!offer.conduit.keeper_) {
    return Status::from_errno("The pipe to the store could not be opened again", errno);
  }
  offer.conduit.guard(offer.conduit.keeper_.get());
  return offer;
}

}  // namespace lockstep::store
