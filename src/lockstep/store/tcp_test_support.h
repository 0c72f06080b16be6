// What the tests of TcpStore and its server share: servers, clients, and strangers with a plain socket.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/handshake.h"
#include "lockstep/base/net.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {

using namespace std::chrono_literals;

inline Deadline soon() { return Clock::steady().in(60s); }

// A server of one job, and how to reach it.
struct TestServer {
  explicit TestServer(TcpServerOptions options = {}, TenantOptions tenant = {}) : secret(Secret::generate()) {
    tenant.job_id = "job";
    tenant.secret = secret;
    if (!tenant.max_connections) tenant.max_connections = 600;
    options.tenants.push_back(std::move(tenant));
    auto started = TcpStoreServer::start(std::move(options));
    EXPECT_OK(started);
    server = std::move(started).value();
  }

  TcpStoreOptions client_options(LocalSocket local) const {
    return {.endpoint = server->endpoint(),
            .job_id = "job",
            .secret = secret,
            .timeout = 20s,
            .local_socket = local};
  }
  std::unique_ptr<TcpStore> connect(LocalSocket local = LocalSocket::kOn) const {
    auto store = TcpStore::connect(client_options(local), soon());
    EXPECT_OK(store);
    return std::move(store).value();
  }
  // A TCP connection on which nothing has been said.
  base::UniqueFd stranger() const {
    auto socket = base::connect_to(server->address(), soon(), base::OnRefused::kFail);
    EXPECT_OK(socket);
    return std::move(socket).value();
  }

  const Secret secret;
  std::unique_ptr<TcpStoreServer> server;
};

inline Status send_text(const base::UniqueFd& socket, std::string_view text) {
  return base::send_all(socket.get(), bytes_of(text), soon(), "test");
}

// Whatever the server does last is to close the connection; what it says before is left unread.
inline bool is_closed_by_peer(const base::UniqueFd& socket, Duration within = 20s) {
  const Deadline deadline = Clock::steady().in(within);
  while (!deadline.expired()) {
    pollfd descriptor{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (poll(&descriptor, 1, deadline.poll_millis()) <= 0) continue;
    char bytes[256];
    const ssize_t count = recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return true;
  }
  return false;
}

// What a scope writes to stderr.
class CapturedLog {
 public:
  CapturedLog() { ::testing::internal::CaptureStderr(); }
  ~CapturedLog() {
    if (!taken_) ::testing::internal::GetCapturedStderr();
  }
  std::string take() {
    taken_ = true;
    return ::testing::internal::GetCapturedStderr();
  }

 private:
  bool taken_ = false;
};

inline std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace lockstep::store
