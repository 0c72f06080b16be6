#include "lockstep/transport/tcp/tcp_transport.h"

#include <set>
#include <utility>

#include "lockstep/base/net.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/parties.h"
#include "lockstep/transport/tcp/opening.h"
#include "lockstep/transport/tcp/tcp_listener.h"

namespace lockstep::transport::tcp {

class TcpTransport::Impl {
 public:
  Impl(std::unique_ptr<Loop> loop, TcpTransportOptions options)
      : options_(std::move(options)),
        surroundings_{.loop = *loop,
                      .lingering = lingering_,
                      .identity = options_.identity,
                      .protection = options_.protection,
                      .handshake_timeout = options_.handshake_timeout,
                      .congestion_control = options_.congestion_control,
                      .cannot_accept = options_.cannot_accept},
        loop_(std::move(loop)) {}

  ~Impl() {
    loop_->run_and_drain([this] {
      const Status stopped = Status::aborted("the transport was destroyed", {.failure = Failure::kClosed});
      while (!connectors_.empty()) {
        const auto connector = *connectors_.begin();
        connectors_.erase(connectors_.begin());
        connector->abort_on_loop(stopped);
      }
      lingering_.end_on_loop();
    });
  }

  Loop& loop() { return *loop_; }
  const TcpTransportOptions& options() const { return options_; }

  void connect_on_loop(const Target& target, base::TimePoint deadline, Connected done) {
    const auto place = std::make_shared<std::weak_ptr<Connector>>();
    const auto connector = std::make_shared<Connector>(
        surroundings_, target, [this, place, target, done = std::move(done)](auto connection) mutable {
          connectors_.erase(place->lock());
          if (!connection.ok()) {
            const Parties parties =
                Parties::of(options_.identity, {.rank = target.rank, .host = target.endpoint.text()});
            connection = parties.blame(connection.status(), "connect", "connect to");
          }
          loop_->post([done = std::move(done), connection = std::move(connection)]() mutable {
            done(std::move(connection));
          });
        });
    *place = connector;
    connectors_.insert(connector);
    connector->start_on_loop(deadline);
  }

  Result<std::unique_ptr<Listener>> listen(const base::Endpoint& bind) {
    LOCKSTEP_ASSIGN(const auto wanted, base::SocketAddress::parse(bind.host, bind.port));
    LOCKSTEP_TRY(refuse_open_listener(options_.identity, wanted, options_.open_to_all));
    LOCKSTEP_ASSIGN(UniqueFd socket, base::listen_on(wanted));
    LOCKSTEP_ASSIGN(const auto address, base::local_address(socket.get()));
    const base::Endpoint endpoint{.host = address.host(), .port = address.port()};
    const auto world = static_cast<std::size_t>(options_.identity.world.value);
    const Door::Limits limits{.unproven = options_.max_unproven,
                              .connections = options_.max_connections.value_or(2 * world + 16)};
    auto door = std::make_shared<Door>(surroundings_, limits, endpoint);
    loop_->post([door, socket = std::move(socket)]() mutable { door->open_on_loop(std::move(socket)); });
    return std::unique_ptr<Listener>(
        std::make_unique<TcpListener>(*loop_, options_.identity, std::move(door), endpoint));
  }

 private:
  const TcpTransportOptions options_;
  Lingering lingering_;
  const Surroundings surroundings_;
  std::set<std::shared_ptr<Connector>> connectors_;
  const std::unique_ptr<Loop> loop_;  // last: what is posted to it uses the others
};

Result<std::unique_ptr<TcpTransport>> TcpTransport::create(TcpTransportOptions options, const Clock& clock) {
  LOCKSTEP_ASSIGN(auto loop, Loop::start("lockstep-tcp", clock));
  return std::unique_ptr<TcpTransport>(
      new TcpTransport(std::make_unique<Impl>(std::move(loop), std::move(options))));
}

TcpTransport::TcpTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TcpTransport::~TcpTransport() {
  // Connects and lingering sockets, too, are the parent's.
  if (impl_->loop().in_forked_child()) static_cast<void>(impl_.release());
}

void TcpTransport::connect(const Target& target, const Deadline& deadline, Connected done) {
  Loop& loop = impl_->loop();
  if (loop.in_forked_child()) return done(forked(impl_->options().identity, "connect"));
  loop.post([impl = impl_.get(), target, at = loop.time_of(deadline), done = std::move(done)]() mutable {
    impl->connect_on_loop(target, at, std::move(done));
  });
}

Result<std::unique_ptr<Listener>> TcpTransport::listen(const base::Endpoint& bind) {
  if (impl_->loop().in_forked_child()) return forked(impl_->options().identity, "listen");
  return impl_->listen(bind);
}

const Clock& TcpTransport::clock() const { return impl_->loop().clock(); }

Loop& TcpTransport::loop() { return impl_->loop(); }

}  // namespace lockstep::transport::tcp
