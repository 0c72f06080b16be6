#include "lockstep/transport/shm/descriptor_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/descriptor_passing.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/log.h"
#include "lockstep/base/net.h"
#include "lockstep/base/text.h"

namespace lockstep::transport::shm {
namespace {

using namespace std::chrono_literals;

constexpr Logger kLog("shm");
// Whoever is slower, as on a machine that is busy beyond measure, comes again.
constexpr Duration kHandshakeLimit = 5s;
constexpr Duration kPause = 20ms;
constexpr Duration kLookPeriod = 100ms;
constexpr Duration kLogPeriod = 1min;

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t size = 0;
};
AbstractAddress abstract_address(std::string_view name) {
  AbstractAddress out;
  out.address.sun_family = AF_UNIX;
  // A name that starts with a zero byte is in no file system.
  const std::size_t length = std::min(name.size(), sizeof(out.address.sun_path) - 1);
  std::memcpy(out.address.sun_path + 1, name.data(), length);
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return out;
}

Result<UniqueFd> listen_abstract(std::string_view name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Status::from_errno("cannot make a unix socket", errno);
  const AbstractAddress at = abstract_address(name);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0 ||
      ::listen(socket.get(), 1024) != 0) {
    return Status::from_errno("cannot listen on an abstract unix socket", errno);
  }
  return socket;
}

Result<UniqueFd> connect_abstract(std::string_view name) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Status::from_errno("cannot make a unix socket", errno);
  const AbstractAddress at = abstract_address(name);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0) {
    return Status::from_errno("cannot connect to its unix socket", errno);
  }
  return socket;
}

Result<ucred> other_end_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Status::from_errno("cannot ask who is at the other end of a unix socket", errno);
  }
  return peer;
}

Status check_same_user(int socket) {
  LOCKSTEP_ASSIGN(const ucred peer, other_end_of(socket));
  if (peer.uid != ::geteuid()) {
    return Status::invalid(cat("process ", peer.pid, " of user ", peer.uid, " is not ours"),
                           {.failure = Failure::kRejected, .pid = peer.pid});
  }
  return {};
}

// Until the socket is ready; kTimeout at the deadline.
Status await_socket(int socket, short events, const Deadline& deadline) {
  if (deadline.expired()) return Status::timeout("passing a descriptor took too long");
  pollfd ready{.fd = socket, .events = events, .revents = 0};
  (void)::poll(&ready, 1, deadline.poll_millis());
  return {};
}

Status send_descriptor(int socket, int descriptor, const Deadline& deadline) {
  const std::byte byte{'d'};
  while (base::send_descriptors(socket, {&byte, 1}, {&descriptor, 1}) != 1) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Status::from_errno("cannot pass a descriptor", errno);
    LOCKSTEP_TRY(await_socket(socket, POLLOUT, deadline));
  }
  return {};
}

Result<UniqueFd> receive_descriptor(int socket, const Deadline& deadline) {
  std::byte byte{};
  UniqueFd descriptor;
  ssize_t received = 0;
  while ((received = base::receive_descriptors(socket, {&byte, 1}, {&descriptor, 1})) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Status::from_errno("cannot receive a descriptor", errno);
    LOCKSTEP_TRY(await_socket(socket, POLLIN, deadline));
  }
  if (descriptor) return descriptor;
  if (received == 0) return Status::disconnected("it closed the connection before it sent its descriptor");
  return Status::from_errno("its descriptor could not be taken over", EMFILE);
}

Result<UniqueFd> swap_descriptors(int socket, int descriptor, const Deadline& deadline) {
  LOCKSTEP_TRY(send_descriptor(socket, descriptor, deadline));
  return receive_descriptor(socket, deadline);
}

// One member's part of the exchange.
class Exchange {
 public:
  Exchange(const DescriptorExchange& what, const Deadline& deadline)
      : what_(what),
        deadline_(deadline),
        log_limit_(kLogPeriod, deadline.clock()),
        received_(what.members.size()) {}

  // Where it closes on us we may have been too slow for it: as long as there is time, we come again. If it
  // has died, nobody listens.
  Result<UniqueFd> dial(std::string_view name) const {
    Status closed;
    while (true) {
      const Result<UniqueFd> socket = connect_abstract(name);
      if (!socket.ok()) return closed.ok() ? socket.status() : closed;
      auto descriptor = introduce(*socket);
      closed = descriptor.status();
      const bool again = closed.code() == Code::kDisconnected && closed.failure() == Failure::kNone;
      if (!again || deadline_.expired()) return descriptor;
      if (what_.look) LOCKSTEP_TRY(what_.look());
      (void)::poll(nullptr, 0, deadline_.at_most(kPause).poll_millis());
    }
  }

  Result<UniqueFd> introduce(const UniqueFd& socket) const {
    LOCKSTEP_TRY(check_same_user(socket.get()));
    base::ClientHandshake handshake({.role = base::Role::kHeap,
                                     .job_id = what_.job_id,
                                     .epoch = what_.epoch,
                                     .rank = static_cast<std::uint32_t>(rank_of(what_.index).value)},
                                    what_.secret);
    LOCKSTEP_TRY(base::send_all(socket.get(), handshake.hello(), deadline_, "sending a hello"));
    LOCKSTEP_TRY(await_first_answer(socket.get()));
    std::array<std::byte, base::kServerHelloSize> hello{};
    LOCKSTEP_TRY(base::recv_all(socket.get(), hello, deadline_, "waiting for a hello"));
    LOCKSTEP_ASSIGN(const auto proof, handshake.on_server_hello(hello));
    LOCKSTEP_TRY(base::send_all(socket.get(), proof, deadline_, "sending a proof"));
    std::array<std::byte, base::kVerdictSize> verdict{};
    LOCKSTEP_TRY(base::recv_all(socket.get(), verdict, deadline_, "waiting for a verdict"));
    LOCKSTEP_TRY(handshake.on_verdict(verdict));
    return swap_descriptors(socket.get(), what_.descriptor, deadline_);
  }

  // Takes one connection; which member it was is put into received_. A stranger is refused and forgotten.
  Status answer(const UniqueFd& socket) {
    const Deadline limit = deadline_.at_most(kHandshakeLimit);
    LOCKSTEP_TRY(check_same_user(socket.get()));
    base::ServerHandshake handshake([this](const base::ClientClaim& claim) { return decide(claim); });
    std::array<std::byte, base::kClientHelloSize> hello{};
    LOCKSTEP_TRY(base::recv_all(socket.get(), hello, limit, "waiting for a hello"));
    LOCKSTEP_TRY(base::send_all(socket.get(), handshake.on_client_hello(hello), limit, "sending a hello"));
    LOCKSTEP_TRY(refusal(handshake));
    std::array<std::byte, base::kProofSize> proof{};
    LOCKSTEP_TRY(base::recv_all(socket.get(), proof, limit, "waiting for a proof"));
    LOCKSTEP_TRY(base::send_all(socket.get(), handshake.on_proof(proof), limit, "sending a verdict"));
    LOCKSTEP_TRY(refusal(handshake));
    LOCKSTEP_ASSIGN(UniqueFd descriptor, swap_descriptors(socket.get(), what_.descriptor, limit));
    received_[*index_of(handshake.claim().rank)] = std::move(descriptor);
    return {};
  }

  // One line for each process and minute.
  void log_refusal(const UniqueFd& socket, const Status& why) {
    const auto peer = other_end_of(socket.get());
    std::uint64_t suppressed = 0;
    if (!log_limit_.allow(peer.ok() ? cat(peer->pid) : "", &suppressed)) return;
    std::string line = cat("refused a process that wanted our shared memory: ", why.message());
    if (suppressed > 0) line += cat(" (and ", suppressed, " times more since the last line)");
    kLog.warn(line);
  }

  Status blame(std::size_t peer, const Status& status) const {
    Cause cause = status.cause();
    cause.rank = rank_of(what_.index);
    cause.peer = what_.members[peer];
    return status.with_cause(cause).with_prefix(
        cat("rank ", *cause.rank, ": sharing memory with rank ", *cause.peer, ": "));
  }

  void keep(std::size_t peer, UniqueFd descriptor) { received_[peer] = std::move(descriptor); }
  std::vector<Rank> missing() const {
    std::vector<Rank> ranks;
    for (std::size_t i = 0; i < received_.size(); ++i) {
      if (!received_[i] && static_cast<int>(i) != what_.index) ranks.push_back(what_.members[i]);
    }
    return ranks;
  }
  std::vector<UniqueFd> take() && { return std::move(received_); }
  Rank rank_of(int index) const { return what_.members[static_cast<std::size_t>(index)]; }

 private:
  std::optional<std::size_t> index_of(std::uint32_t rank) const {
    for (std::size_t i = 0; i < what_.members.size(); ++i) {
      if (static_cast<std::uint32_t>(what_.members[i].value) == rank) return i;
    }
    return std::nullopt;
  }

  base::ServerHandshake::Decision decide(const base::ClientClaim& claim) const {
    if (claim.role != base::Role::kHeap) return {.verdict = base::Verdict::kWrongRole, .secret = {}};
    if (claim.job != base::job_hash(what_.job_id)) return {.verdict = base::Verdict::kWrongJob, .secret = {}};
    if (claim.epoch != what_.epoch) return {.verdict = base::Verdict::kWrongEpoch, .secret = {}};
    const auto index = index_of(claim.rank);
    if (!index || static_cast<int>(*index) <= what_.index || received_[*index]) {
      return {.verdict = base::Verdict::kDuplicateRank, .secret = {}};
    }
    return {.verdict = base::Verdict::kAccepted, .secret = what_.secret};
  }

  // It may be long in coming: who listens takes others' connections first, or is still meeting ranks itself.
  Status await_first_answer(int socket) const {
    pollfd answered{.fd = socket, .events = POLLIN, .revents = 0};
    while (!deadline_.expired() && ::poll(&answered, 1, deadline_.at_most(kLookPeriod).poll_millis()) <= 0) {
      if (what_.look) LOCKSTEP_TRY(what_.look());
    }
    return {};
  }

  static Status refusal(const base::ServerHandshake& handshake) {
    if (handshake.verdict() == base::Verdict::kAccepted) return {};
    return Status::invalid(std::string(base::verdict_text(handshake.verdict())),
                           {.failure = Failure::kRejected});
  }

  const DescriptorExchange& what_;
  const Deadline deadline_;
  base::RateLimit log_limit_;
  std::vector<UniqueFd> received_;
};

Status missing_error(const DescriptorExchange& exchange, const std::vector<Rank>& missing) {
  const Rank own = exchange.members[static_cast<std::size_t>(exchange.index)];
  return Status::timeout(
      cat("rank ", own, ": rank ", base::ranks_text(missing),
          " on this host did not come to share memory before the deadline"),
      {.failure = Failure::kMissingRanks, .rank = own, .op = "share memory", .missing = missing});
}

}  // namespace

Result<std::vector<UniqueFd>> exchange_descriptors(const DescriptorExchange& exchange, store::Store& store,
                                                   const Deadline& deadline) {
  Exchange state(exchange, deadline);
  const auto own = static_cast<std::size_t>(exchange.index);
  const auto key = [&](std::size_t index) { return cat(exchange.name, '/', exchange.members[index]); };

  std::array<std::byte, 16> random{};
  base::random_bytes(random);
  const std::string name = cat("lockstep-heap-", base::hex(random));
  LOCKSTEP_ASSIGN(const UniqueFd listener, listen_abstract(name));
  LOCKSTEP_TRY(store.set(key(own), bytes_of(name), deadline));

  for (std::size_t peer = 0; peer < own; ++peer) {
    const std::string where = key(peer);
    auto address = store::watched_get(store, {&where, 1}, deadline, exchange.look);
    if (!address.ok() && address.status().code() == Code::kTimeout)
      return missing_error(exchange, state.missing());
    if (!address.ok()) return address.status();
    auto descriptor = state.dial(text_of(address->front()));
    if (!descriptor.ok()) return state.blame(peer, descriptor.status());
    state.keep(peer, std::move(*descriptor));
  }
  while (!state.missing().empty()) {
    if (deadline.expired()) return missing_error(exchange, state.missing());
    pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, deadline.at_most(kLookPeriod).poll_millis()) <= 0) {
      if (exchange.look) LOCKSTEP_TRY(exchange.look());
      continue;
    }
    const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) continue;
    if (const Status status = state.answer(socket); !status.ok()) state.log_refusal(socket, status);
  }
  return std::move(state).take();
}

}  // namespace lockstep::transport::shm
