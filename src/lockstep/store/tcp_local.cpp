#include "lockstep/store/tcp_local.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lockstep/base/bytes.h"
#include "lockstep/base/check.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t size = 0;

  explicit AbstractAddress(const std::string& name) {
    LOCKSTEP_CHECK(name.size() + 1 <= sizeof(address.sun_path), "the name of an abstract socket is too long");
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&address); }
};

base::UniqueFd local_socket() {
  return base::UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

std::string local_socket_name(const base::SocketAddress& address, const base::JobHash& job,
                              std::uint64_t epoch) {
  // Hashed, because the name of a socket has room for 107 bytes.
  const base::Digest hash = base::sha256(bytes_of(cat(address.text(), "/", base::hex(job), "/", epoch)));
  return cat("lockstep/store/", address.port(), "/", base::hex(std::span(hash).first(16)));
}

Result<base::UniqueFd> listen_local(const std::string& name) {
  base::UniqueFd listener = local_socket();
  if (!listener) return Status::from_errno("No local socket could be made for the store", errno);
  const AbstractAddress address(name);
  if (bind(listener.get(), address.data(), address.size) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
    return Status::from_errno(cat("The store cannot listen on the local socket ", name), errno);
  }
  return listener;
}

Result<base::UniqueFd> connect_local(const std::string& name) {
  base::UniqueFd connection = local_socket();
  if (!connection) return Status::from_errno("No local socket could be made to reach the store", errno);
  const AbstractAddress address(name);
  if (connect(connection.get(), address.data(), address.size) != 0) {
    return Status::from_errno(cat("No store listens on the local socket ", name), errno);
  }
  return connection;
}

bool LocalPeer::trusted() const { return uid == geteuid() || uid == 0; }

std::string LocalPeer::text() const { return cat("process ", pid, " of user ", uid); }

Result<LocalPeer> local_peer(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return Status::from_errno("The kernel does not say who is at the other end of a local socket", errno);
  }
  return LocalPeer{.uid = credentials.uid, .pid = credentials.pid};
}

bool is_own_address(const base::SocketAddress& address) {
  if (address.is_loopback()) return true;
  // The kernel reaches an address of this host from that address itself.
  const auto local = base::local_address_towards(address);
  return local.ok() && local->host() == address.host();
}

}  // namespace lockstep::store
