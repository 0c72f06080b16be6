#include "lockstep/transport/tcp/opening.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/net.h"
#include "lockstep/base/text.h"
#include "lockstep/transport/congestion.h"
#include "lockstep/transport/stream.h"

namespace lockstep::transport::tcp {
namespace {

Status too_late(std::string_view what, Duration waited) {
  return Status::timeout(cat(what, " within ", waited), {.failure = Failure::kPeerUnreachable});
}

Status connect_failed(int error) {
  switch (error) {
    case ECONNREFUSED:
      return Status::disconnected("nobody listens there (connection refused)",
                                  {.failure = Failure::kPeerUnreachable});
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ETIMEDOUT:
      return Status::disconnected(::strerrordesc_np(error), {.failure = Failure::kPeerUnreachable});
    default:
      return Status::from_errno("the connection cannot be made", error);
  }
}

// A socket that is connecting, or connected already.
Result<UniqueFd> begin_connect(const base::Endpoint& endpoint) {
  LOCKSTEP_ASSIGN(const auto address, base::SocketAddress::parse(endpoint.host, endpoint.port));
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Status::from_errno("no socket can be made", errno);
  while (::connect(fd.get(), address.data(), address.size()) != 0) {
    if (errno == EINPROGRESS) break;
    if (errno != EINTR) return connect_failed(errno);
  }
  return fd;
}

base::HandshakeIdentity handshake_identity(const Identity& identity) {
  return {.role = base::Role::kControl,
          .job_id = identity.job_id,
          .epoch = identity.epoch,
          .rank = identity.rank ? static_cast<std::uint32_t>(identity.rank->value) : base::kNoRank};
}

}  // namespace

Meeting::Meeting(const Surroundings& surroundings, std::shared_ptr<TcpWire> wire, std::string host,
                 std::optional<Rank> expected, Opened opened)
    : surroundings_(surroundings),
      wire_(std::move(wire)),
      host_(std::move(host)),
      expected_(expected),
      timer_(surroundings.loop),
      opened_(std::move(opened)) {}

void Meeting::start_on_loop(base::TimePoint deadline) {
  const base::TimePoint start = surroundings_.loop.clock().now();
  timer_.arm_on_loop(deadline, [weak = weak_from_this(), start] {
    if (const auto self = weak.lock()) {
      self->abort_on_loop(
          too_late("it did not introduce itself", self->surroundings_.loop.clock().now() - start));
    }
  });
  wire_->start_on_loop([self = shared_from_this()] { self->go_on_on_loop(); });
  go_on_on_loop();
}

void Meeting::abort_on_loop(const Status& why) {
  if (!opened_) return;
  timer_.disarm_on_loop();
  const Opened opened = std::exchange(opened_, nullptr);
  const auto self = shared_from_this();  // the wire lets go of it
  wire_->cut_on_loop();
  opened(why);
}

void Meeting::go_on_on_loop() {
  if (!opened_) return;
  const auto self = shared_from_this();
  const Identity& identity = surroundings_.identity;
  const Introduction own{
      .protection = surroundings_.protection, .rank = identity.rank, .world = identity.world};
  const auto other = wire_->introduce_on_loop(own);
  if (!other.ok()) return abort_on_loop(other.status());
  if (!other->has_value()) return;
  const Status judged = judge_introduction(own, **other, expected_);
  if (!judged.ok()) return abort_on_loop(judged);
  timer_.disarm_on_loop();
  auto stream = std::make_shared<Stream>(
      surroundings_.loop, Parties::of(identity, {.rank = (*other)->rank, .host = host_}), wire_);
  stream->start_on_loop();
  std::exchange(opened_,
                nullptr)(std::unique_ptr<Connection>(std::make_unique<StreamConnection>(std::move(stream))));
}

Connector::Connector(const Surroundings& surroundings, const Target& target, Opened opened)
    : surroundings_(surroundings),
      target_(target),
      handshake_(handshake_identity(surroundings.identity), surroundings.identity.secret),
      timer_(surroundings.loop),
      opened_(std::move(opened)) {}

void Connector::set_limit_on_loop(std::string what) {
  const base::TimePoint start = surroundings_.loop.clock().now();
  timer_.arm_on_loop(deadline_, [weak = weak_from_this(), start, what = std::move(what)] {
    if (const auto self = weak.lock()) {
      self->abort_on_loop(too_late(what, self->surroundings_.loop.clock().now() - start));
    }
  });
}

void Connector::start_on_loop(base::TimePoint deadline) {
  deadline_ = deadline;
  auto fd = begin_connect(target_.endpoint);
  if (!fd.ok()) return abort_on_loop(fd.status());
  set_limit_on_loop("there is no answer");
  choose_congestion_control(fd->get(), surroundings_.congestion_control);
  socket_ = std::make_unique<Socket>(surroundings_.loop, std::move(fd).value());
  socket_->when_writable_on_loop([self = shared_from_this()] { self->connected_on_loop(); });
}

void Connector::abort_on_loop(const Status& why) {
  if (!opened_) return;
  const auto self = shared_from_this();  // the socket lets go of it
  if (meeting_) return meeting_->abort_on_loop(why);
  timer_.disarm_on_loop();
  if (socket_) socket_->close_on_loop();
  std::exchange(opened_, nullptr)(why);
}

void Connector::connected_on_loop() {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(socket_->fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return abort_on_loop(connect_failed(error));
  stage_ = Stage::kHello;
  set_limit_on_loop("it did not finish the handshake");
  const Status sent = send_now_on_loop(handshake_.hello());
  if (!sent.ok()) return abort_on_loop(sent);
  go_on_on_loop();
}

// The few bytes of a handshake always fit into the buffer of a fresh socket.
Status Connector::send_now_on_loop(ByteView bytes) {
  LOCKSTEP_ASSIGN(const std::size_t sent, socket_->send_on_loop(bytes));
  if (sent == bytes.size()) return {};
  return Status::disconnected("it does not take the handshake", {.failure = Failure::kPeerUnreachable});
}

void Connector::go_on_on_loop() {
  while (opened_ && stage_ != Stage::kMeeting) {
    const std::size_t wanted = stage_ == Stage::kHello ? base::kServerHelloSize : base::kVerdictSize;
    const auto count = socket_->recv_on_loop(ByteSpan(in_).first(wanted).subspan(count_));
    if (!count.ok()) return abort_on_loop(count.status().with_prefix("in the handshake, "));
    if (*count == 0)
      return socket_->when_readable_on_loop([self = shared_from_this()] { self->go_on_on_loop(); });
    count_ += *count;
    if (count_ < wanted) continue;
    count_ = 0;
    const Status taken = stage_ == Stage::kHello ? take_hello_on_loop() : take_verdict_on_loop();
    if (!taken.ok()) return abort_on_loop(taken);
  }
}

Status Connector::take_hello_on_loop() {
  LOCKSTEP_ASSIGN(const auto proof, handshake_.on_server_hello(in_));
  stage_ = Stage::kVerdict;
  return send_now_on_loop(proof);
}

Status Connector::take_verdict_on_loop() {
  LOCKSTEP_TRY(handshake_.on_verdict(ByteView(in_).first<base::kVerdictSize>()));
  const base::SessionKeys keys = handshake_.keys();
  stage_ = Stage::kMeeting;
  timer_.disarm_on_loop();
  auto wire =
      std::make_shared<TcpWire>(surroundings_.loop, surroundings_.lingering, std::move(socket_),
                                TcpWire::Keys{.send = keys.client_to_server, .recv = keys.server_to_client});
  meeting_ = std::make_shared<Meeting>(surroundings_, std::move(wire), target_.endpoint.text(), target_.rank,
                                       [self = shared_from_this()](auto connection) {
                                         std::exchange(self->opened_, nullptr)(std::move(connection));
                                       });
  // Held here: the wire keeps it only while it waits.
  const auto meeting = meeting_;
  meeting->start_on_loop(deadline_);
  return {};
}

}  // namespace lockstep::transport::tcp
