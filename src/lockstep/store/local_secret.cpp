#include "lockstep/store/local_secret.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"
#include "lockstep/store/tcp_local.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;

constexpr Duration kFirstMeetingPause = milliseconds(5);
constexpr Duration kLongestMeetingPause = milliseconds(250);
constexpr Duration kHandOver = std::chrono::seconds(1);

struct SecretBytes {
  SecretBytes() = default;
  ~SecretBytes() { explicit_bzero(bytes.data(), bytes.size()); }
  SecretBytes(const SecretBytes&) = delete;
  SecretBytes& operator=(const SecretBytes&) = delete;
  std::array<std::byte, base::kSecretSize> bytes{};
};

// kDisconnected if whoever hands it out has just gone.
Result<Secret> receive(int socket, const base::SocketAddress& store, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const LocalPeer peer, local_peer(socket));
  SecretBytes secret;
  const Status received =
      peer.trusted() ? base::recv_all(socket, secret.bytes, deadline, "The secret of the job") : Status();
  if (!peer.trusted() || (received.code() == Code::kDisconnected && peer.uid != ::geteuid())) {
    return Status::invalid(
        cat("The store at ", store.text(), " belongs to ", peer.text(), ", and this process is of user ",
            ::geteuid(), ". Give both a secret (LOCKSTEP_SECRET_FILE), or choose another port."),
        {.failure = Failure::kRejected, .host = store.text(), .pid = peer.pid});
  }
  LOCKSTEP_TRY(received);
  return Secret::from_bytes(secret.bytes);
}

bool somebody_listens(const base::SocketAddress& store, const Deadline& deadline) {
  return base::connect_to(store, deadline.at_most(kHandOver), base::OnRefused::kFail).ok();
}

}  // namespace

std::string local_secret_name(const base::SocketAddress& store) {
  return cat("lockstep/secret/", store.text());
}

Result<std::unique_ptr<LocalSecretServer>> LocalSecretServer::start(const std::string& name,
                                                                    const Secret& secret) {
  LOCKSTEP_ASSIGN(base::UniqueFd listener, listen_local(name));
  base::UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return Status::from_errno("An eventfd could not be made", errno);
  std::unique_ptr<LocalSecretServer> server(
      new LocalSecretServer(std::move(listener), std::move(stop), secret));
  LOCKSTEP_ASSIGN(server->thread_,
                  base::start_thread("lockstep-secret", [raw = server.get()] { raw->serve(); }));
  return server;
}

LocalSecretServer::LocalSecretServer(base::UniqueFd listener, base::UniqueFd stop, const Secret& secret)
    : secret_(secret), listener_(std::move(listener)), stop_(std::move(stop)), fork_guard_(listener_.get()) {}

LocalSecretServer::~LocalSecretServer() {
  if (fork_guard_.in_child()) {
    base::abandon(thread_);
    return;
  }
  const std::uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  if (thread_.joinable()) thread_.join();
}

void LocalSecretServer::serve() {
  std::array<pollfd, 2> watched = {pollfd{listener_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
  while (true) {
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;  // EINTR
    if (watched[1].revents != 0) return;
    const base::UniqueFd guest(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!guest) {
      // Out of descriptors: the guest stays in the backlog; look again a little later.
      if (errno == EMFILE || errno == ENFILE) (void)::poll(&watched[1], 1, 100);
      continue;
    }
    const auto peer = local_peer(guest.get());
    // 32 bytes always fit into a fresh socket; a peer that has gone already gets nothing.
    if (peer.ok() && peer->trusted())
      (void)base::send_all(guest.get(), secret_.bytes(), Clock::steady().in(kHandOver),
                           "The secret of the job");
  }
}

Result<Secret> fetch_local_secret(const std::string& name, const base::SocketAddress& store,
                                  const Deadline& deadline) {
  Duration pause = kFirstMeetingPause;
  while (true) {
    auto socket = connect_local(name);
    // Whoever serves a store hands its secret out before it listens, so this order of asking misses nothing.
    if (!socket.ok() && somebody_listens(store, deadline)) {
      socket = connect_local(name);
      if (!socket.ok()) {
        return Status::invalid(cat("The store at ", store.text(),
                                   " is there, but hands out no secret: it was given one and this rank was "
                                   "not (LOCKSTEP_SECRET_FILE, LOCKSTEP_SECRET_FD), or LOCKSTEP_INSECURE is "
                                   "set there alone, or it is "
                                   "no store of Lockstep."),
                               {.failure = Failure::kNoSecret, .host = store.text()});
      }
    }
    if (socket.ok()) {
      auto secret = receive(socket->get(), store, deadline);
      if (secret.status().code() != Code::kDisconnected) return secret;
    }
    if (deadline.expired()) return Status::timeout(cat("nobody listens at ", store.text()));
    std::this_thread::sleep_for(deadline.clock().patience(std::min(pause, deadline.remaining())));
    pause = std::min(2 * pause, kLongestMeetingPause);
  }
}

}  // namespace lockstep::store
