#include "lockstep/store/tcp_conduit.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

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

union Control {
  std::array<char, CMSG_SPACE(kPassed * sizeof(int))> bytes;
  cmsghdr aligned;
};

bool pass(int socket, int sending, int receiving) {
  std::byte byte = kPipes;
  iovec data{.iov_base = &byte, .iov_len = 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(kPassed * sizeof(int));
  const std::array<int, kPassed> passed = {sending, receiving};
  std::memcpy(CMSG_DATA(header), passed.data(), sizeof(passed));
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
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

Conduit Conduit::offer_pipes(base::UniqueFd socket) {
  // A child must get neither our ends nor, for the moment that we hold them, the client's.
  const base::ForkLock until_they_are_guarded;
  Pipe requests;
  Pipe answers;
  if (make_pipe(requests) && make_pipe(answers)) {
    // Guarded before the client has its ends: from then on it may count on hearing our end, whoever forks.
    Conduit pipes(std::move(requests.out), std::move(answers.in));
    if (pass(socket.get(), requests.in.get(), answers.out.get())) return pipes;
  }
  // If not even this goes out, the client has gone, and the socket will say so.
  ::send(socket.get(), &kStay, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  return Conduit(std::move(socket));
}

Result<Conduit> Conduit::accept_pipes(base::UniqueFd socket, const Deadline& deadline) {
  std::byte byte{};
  iovec data{.iov_base = &byte, .iov_len = 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  pollfd descriptor{.fd = socket.get(), .events = POLLIN, .revents = 0};
  while (poll(&descriptor, 1, deadline.poll_millis()) <= 0) {
    if (deadline.expired()) return Status::timeout("The store's pipes did not come in time");
  }
  const base::ForkLock until_they_are_guarded;
  const ssize_t count = recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) return Status::from_errno("The store's pipes did not come", errno);
  if (count == 0) return Status::disconnected("The store left before it passed its pipes");
  if (byte == kStay) return Conduit(std::move(socket));
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (byte != kPipes || header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(kPassed * sizeof(int))) {
    return Status::from_errno("The store's pipes could not be taken over", EMFILE);
  }
  std::array<int, kPassed> passed{};
  std::memcpy(passed.data(), CMSG_DATA(header), sizeof(passed));
  Conduit conduit{base::UniqueFd(passed[1]), base::UniqueFd(passed[0])};
  conduit.keeper_ = reading_end_of(conduit.sending());
  if (!conduit.keeper_) return Status::from_errno("The pipe to the store could not be opened again", errno);
  conduit.guard(conduit.keeper_.get());
  return conduit;
}

}  // namespace lockstep::store
