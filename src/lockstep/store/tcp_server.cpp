#include "lockstep/store/tcp_server.h"

#include <sys/socket.h>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <future>
#include <new>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"
#include "lockstep/store/job_secret.h"
#include "lockstep/store/logger.h"
#include "lockstep/store/tcp_greeter.h"
#include "lockstep/store/tcp_listener.h"
#include "lockstep/store/tcp_local.h"
#include "lockstep/store/tcp_session.h"
#include "lockstep/store/tcp_tenant.h"

namespace lockstep::store {
namespace {

constexpr auto kLogPeriod = std::chrono::minutes(1);

// A host that vanished is noticed after a minute, so that its place is free again.
constexpr base::KeepAlive kServerKeepAlive{.idle = std::chrono::seconds(30),
                                           .interval = std::chrono::seconds(10)};

Status check_secret(const TenantOptions& tenant, const base::SocketAddress& address, OpenToAll open_to_all) {
  return refuse_open_listener(cat("A store on ", address.text(), " for job ", base::quoted(tenant.job_id)),
                              address, tenant.secret, open_to_all);
}

Result<base::UniqueFd> listening_socket(TcpServerOptions& options) {
  if (options.listening) return std::move(options.listening);
  LOCKSTEP_ASSIGN(const auto address, base::SocketAddress::parse(options.bind_host, options.port));
  return base::listen_on(address);
}

}  // namespace

class TcpStoreServer::Impl {
 public:
  Impl(base::UniqueFd socket, const base::SocketAddress& address, const TcpServerOptions& options,
       const Clock& clock)
      : address_(address),
        open_to_all_(options.open_to_all),
        local_socket_(options.local_socket),
        clock_(clock),
        log_limit_(kLogPeriod, clock),
        greeter_limits_{.unproven = options.max_unproven, .handshake = options.handshake_timeout},
        fork_generation_(base::fork_generation()),
        shared_(options.max_send_queue.value),
        ready_set_(loop_, [this] { finish_batch_on_loop(); }),
        deadline_timer_(loop_) {
    add_listener(std::move(socket), address_.text());
  }

  Status run() {
    LOCKSTEP_ASSIGN(thread_, base::start_thread("lockstep-store", [this] {
                      run_loop();
                      shut_down_on_loop();
                    }));
    return {};
  }
  void stop() { loop_.stop(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  bool in_forked_child() const { return base::fork_generation() != fork_generation_; }

  Status add_tenant_from_outside(const TenantOptions& options) {
    // Shared with the handler, which a loop that is being stopped may run late or never.
    auto promise = std::make_shared<std::promise<Status>>();
    std::future<Status> added = promise->get_future();
    asio::post(loop_, [this, promise, options] { promise->set_value(add_tenant_on_loop(options)); });
    while (added.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
      if (loop_.stopped())
        return Status::aborted("The store's server is closed.", {.failure = Failure::kClosed});
    }
    return added.get();
  }

  Status add_tenant_on_loop(const TenantOptions& options) {
    LOCKSTEP_TRY(check_secret(options, address_, open_to_all_));
    auto tenant = std::make_unique<Tenant>(options, clock_);
    for (const auto& other : tenants_) {
      if (other->job() == tenant->job() && other->epoch() == tenant->epoch()) {
        return Status::invalid(cat("The store at ", address_.text(), " serves job ",
                                   base::quoted(options.job_id), ", epoch ", options.epoch, " already."));
      }
    }
    if (local_socket_ == LocalSocket::kOn) {
      const std::string name = local_socket_name(address_, tenant->job(), tenant->epoch());
      auto socket = listen_local(name);
      if (socket.ok()) {
        add_listener(std::move(socket).value(), name);
      } else {
        kLog.info(cat(socket.status().message(), "; clients on this host use TCP."));
      }
    }
    tenants_.push_back(std::move(tenant));
    return {};
  }

  const base::SocketAddress& address() const { return address_; }

 private:
  // What runs out of memory is lost; the rest goes on.
  void run_loop() {
    while (!loop_.stopped()) {
      try {
        loop_.run();
      } catch (const std::bad_alloc&) {
        kLog.error("out of memory on the loop of the server");
      }
    }
  }

  // A listening socket with its own places for those who are not known yet, so that strangers on the network
  // take none from this user's processes on this host.
  struct Door {
    std::unique_ptr<Greeter> greeter;
    std::unique_ptr<Listener> listener;
  };

  void add_listener(base::UniqueFd socket, std::string name) {
    auto door = std::make_unique<Door>();
    Door& made = *door;
    made.greeter = std::make_unique<Greeter>(
        loop_, clock_, log_limit_, greeter_limits_,
        Greeter::Callbacks{
            .decide = [this](const base::ClientClaim& claim) { return decide_on_loop(claim); },
            .judge_proven = [this](const base::ClientClaim& claim) { return judge_proven_on_loop(claim); },
            .admit = [this](Guest guest) { admit_on_loop(std::move(guest)); },
            .has_room = [&made] { made.listener->accept_on_loop(); },
            .warn = [](std::string_view line) { kLog.warn(line); }});
    made.listener =
        std::make_unique<Listener>(loop_, std::move(socket), *made.greeter, log_limit_, std::move(name));
    doors_.push_back(std::move(door));
    asio::post(loop_, [&made] { made.listener->accept_on_loop(); });
  }

  Tenant* find_on_loop(const base::ClientClaim& claim) {
    for (const auto& tenant : tenants_) {
      if (tenant->job() == claim.job && tenant->epoch() == claim.epoch) return tenant.get();
    }
    return nullptr;
  }

  base::ServerHandshake::Decision decide_on_loop(const base::ClientClaim& claim) {
    if (claim.role != base::Role::kStore) return {.verdict = base::Verdict::kWrongRole, .secret = {}};
    if (const Tenant* tenant = find_on_loop(claim)) return {.secret = tenant->secret()};
    for (const auto& tenant : tenants_) {
      if (tenant->job() == claim.job) return {.verdict = base::Verdict::kWrongEpoch, .secret = {}};
    }
    return {.verdict = base::Verdict::kWrongJob, .secret = {}};
  }

  base::Verdict judge_proven_on_loop(const base::ClientClaim& claim) {
    const Tenant& tenant = *find_on_loop(claim);
    return tenant.connections() < tenant.max_connections() ? base::Verdict::kAccepted
                                                           : base::Verdict::kTooMany;
  }

  void admit_on_loop(Guest guest) {
    Tenant& tenant = *find_on_loop(guest.claim);
    if (guest.keys) base::watch_connection(guest.socket.get(), kServerKeepAlive);
    kLog.debug(cat(guest.peer.text, " is here, connection ", tenant.connections() + 1));
    auto session = std::make_unique<Session>(shared_, ready_set_, tenant, std::move(guest));
    Session* const key = session.get();
    sessions_.emplace(key, std::move(session));
    if (!shared_.closed.empty()) finish_batch_on_loop();  // it could not even begin
  }

  // Sends what was answered, destroys who has gone, and sees to the timer.
  void finish_batch_on_loop() {
    // Sending may make room for further requests of a client, and so for further answers.
    while (!shared_.unsent.empty()) {
      flushing_.swap(shared_.unsent);
      for (Session* session : flushing_) session->flush_on_loop();
      flushing_.clear();
    }
    for (Session* session : shared_.closed) sessions_.erase(session);
    shared_.closed.clear();
    arm_timer_on_loop();
  }

  // After the loop has ended, on its thread. What still waits is never called any more, and goes with the
  // loop.
  void shut_down_on_loop() {
    doors_.clear();
    sessions_.clear();
    shared_.unsent.clear();
    shared_.closed.clear();
  }

  // One timer for the earliest deadline of all. It is only ever moved forward: an early ring finds nothing to
  // do, which is cheaper than a system call for every request that waits.
  void arm_timer_on_loop() {
    std::optional<base::TimePoint> next;
    for (const auto& tenant : tenants_) {
      const auto deadline = tenant->next_deadline();
      if (deadline && (!next || *deadline < *next)) next = deadline;
    }
    if (!next || (armed_for_ && *armed_for_ <= *next)) return;
    armed_for_ = next;
    deadline_timer_.expires_after(clock_.patience(std::max(*next - clock_.now(), Duration::zero())));
    deadline_timer_.async_wait([this](const asio::error_code& moved) {
      if (moved) return;
      armed_for_.reset();
      for (const auto& tenant : tenants_) tenant->expire();
      finish_batch_on_loop();
    });
  }

  const base::SocketAddress address_;
  const OpenToAll open_to_all_;
  const LocalSocket local_socket_;
  const Clock& clock_;
  base::RateLimit log_limit_;
  const Greeter::Limits greeter_limits_;
  const std::uint64_t fork_generation_;
  std::vector<std::unique_ptr<Tenant>> tenants_;
  asio::io_context loop_{1};
  Session::Shared shared_;
  std::vector<Session*> flushing_;
  ReadySet ready_set_;
  std::unordered_map<Session*, std::unique_ptr<Session>> sessions_;
  std::vector<std::unique_ptr<Door>> doors_;
  asio::steady_timer deadline_timer_;
  std::optional<base::TimePoint> armed_for_;
  std::thread thread_;
};

Result<std::unique_ptr<TcpStoreServer>> TcpStoreServer::start(TcpServerOptions options, const Clock& clock) {
  LOCKSTEP_ASSIGN(auto socket, listening_socket(options));
  LOCKSTEP_ASSIGN(const auto address, base::local_address(socket.get()));
  try {
    auto impl = std::make_unique<Impl>(std::move(socket), address, options, clock);
    for (const TenantOptions& tenant : options.tenants) LOCKSTEP_TRY(impl->add_tenant_on_loop(tenant));
    LOCKSTEP_TRY(impl->run());
    return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(impl)));
  } catch (const std::system_error& error) {
    // No descriptor for the loop.
    return Status::from_errno(cat("A store cannot be served at ", address.text()), error.code().value());
  }
}

TcpStoreServer::TcpStoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TcpStoreServer::~TcpStoreServer() {
  if (impl_->in_forked_child()) {
    // The thread is not in this process, and the loop's epoll set is shared with the parent: both are left.
    static_cast<void>(impl_.release());
    return;
  }
  impl_->stop();
  impl_->join();
}

Status TcpStoreServer::add_tenant(const TenantOptions& tenant) {
  if (impl_->in_forked_child()) {
    return Status::invalid(
        cat("The store at ", address().text(), " is served by the parent of this process."),
        {.failure = Failure::kForked});
  }
  return impl_->add_tenant_from_outside(tenant);
}

const base::SocketAddress& TcpStoreServer::address() const { return impl_->address(); }

base::Endpoint TcpStoreServer::endpoint() const {
  const base::SocketAddress& bound = address();
  if (!bound.is_any()) return {.host = bound.host(), .port = bound.port()};
  return {.host = bound.family() == AF_INET6 ? "::1" : "127.0.0.1", .port = bound.port()};
}

void TcpStoreServer::close() {
  if (!impl_->in_forked_child()) impl_->stop();
}

}  // namespace lockstep::store
