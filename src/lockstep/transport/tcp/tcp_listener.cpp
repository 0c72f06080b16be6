#include "lockstep/transport/tcp/tcp_listener.h"

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/transport/congestion.h"
#include "lockstep/transport/parties.h"

namespace lockstep::transport::tcp {
namespace {

constexpr Logger kLog("transport");
constexpr auto kLogPeriod = std::chrono::minutes(1);

}  // namespace

Door::Door(const Surroundings& surroundings, const Limits& limits, const base::Endpoint& endpoint)
    : surroundings_(surroundings),
      limits_(limits),
      endpoint_(endpoint),
      job_(base::job_hash(surroundings.identity.job_id)),
      queue_(surroundings.loop, surroundings.identity, endpoint),
      log_limit_(kLogPeriod, surroundings.loop.clock()),
      ticket_(std::make_shared<int>()) {}

void Door::open_on_loop(UniqueFd socket) {
  if (queue_.closed()) return;
  asio::io_context& context = surroundings_.loop.context();
  const store::Greeter::Limits limits{.unproven = limits_.unproven,
                                      .handshake = surroundings_.handshake_timeout};
  greeter_ = std::make_unique<store::Greeter>(
      context, surroundings_.loop.clock(), log_limit_, limits,
      store::Greeter::Callbacks{
          .decide = [this](const base::ClientClaim& claim) { return decide_on_loop(claim); },
          .judge_proven = [this](const base::ClientClaim&) { return judge_proven_on_loop(); },
          .admit = [this](store::Guest guest) { admit_on_loop(std::move(guest)); },
          .has_room = [this] { listener_->accept_on_loop(); },
          .warn =
              [this](std::string_view line) {
                kLog.warn(cat(surroundings_.identity.text(), " on ", endpoint_.text(), ": ", line));
              },
          .cannot_accept =
              [this](const Status& why) {
                Cause cause = why.cause();
                cause.rank = cause.peer = surroundings_.identity.rank;
                surroundings_.cannot_accept(
                    why.with_cause(std::move(cause)).with_prefix(cat(surroundings_.identity.text(), ": ")));
              }});
  listener_ = std::make_unique<store::Listener>(context, std::move(socket), *greeter_, log_limit_, "accept");
  listener_->accept_on_loop();
}

void Door::close_on_loop() {
  listener_.reset();
  greeter_.reset();
  const Status closed = Status::aborted("the listener was closed", {.failure = Failure::kClosed});
  while (!meetings_.empty()) {
    const auto meeting = *meetings_.begin();
    meetings_.erase(meetings_.begin());
    meeting->abort_on_loop(closed);
  }
  queue_.close_on_loop();
}

base::ServerHandshake::Decision Door::decide_on_loop(const base::ClientClaim& claim) const {
  if (claim.role != base::Role::kControl) return {.verdict = base::Verdict::kWrongRole, .secret = {}};
  if (claim.job != job_) return {.verdict = base::Verdict::kWrongJob, .secret = {}};
  if (claim.epoch != surroundings_.identity.epoch)
    return {.verdict = base::Verdict::kWrongEpoch, .secret = {}};
  return {.secret = surroundings_.identity.secret};
}

base::Verdict Door::judge_proven_on_loop() const {
  const auto connections = static_cast<std::size_t>(ticket_.use_count()) - 1;
  return connections < limits_.connections ? base::Verdict::kAccepted : base::Verdict::kTooMany;
}

void Door::admit_on_loop(store::Guest guest) {
  const std::optional<base::SessionKeys> keys = guest.keys;
  LOCKSTEP_CHECK(keys.has_value(), "whoever comes over TCP has keys");
  std::optional<Rank> claimed;
  if (guest.claim.rank != base::kNoRank) claimed = Rank(static_cast<int>(guest.claim.rank));
  choose_congestion_control(guest.socket.get(), surroundings_.congestion_control);
  auto wire = std::make_shared<TcpWire>(
      surroundings_.loop, surroundings_.lingering,
      std::make_unique<Socket>(surroundings_.loop, std::move(guest.socket)),
      TcpWire::Keys{.send = keys->server_to_client, .recv = keys->client_to_server});
  wire->hold(ticket_);
  // The meeting's place in the set, which is empty until it is made.
  const auto place = std::make_shared<std::weak_ptr<Meeting>>();
  const auto meeting = std::make_shared<Meeting>(
      surroundings_, std::move(wire), guest.peer.text, claimed,
      [self = shared_from_this(), place, peer = guest.peer](Result<std::unique_ptr<Connection>> connection) {
        self->meetings_.erase(place->lock());
        if (connection.ok()) return self->queue_.offer_on_loop(std::move(connection).value());
        if (!self->queue_.closed() && self->greeter_) {
          self->greeter_->log_rejection(peer, connection.status().message());
        }
      });
  *place = meeting;
  meetings_.insert(meeting);
  meeting->start_on_loop(surroundings_.loop.clock().now() + surroundings_.handshake_timeout);
}

TcpListener::TcpListener(Loop& loop, const Identity& identity, std::shared_ptr<Door> door,
                         const base::Endpoint& endpoint)
    : loop_(loop), guest_(loop), identity_(identity), door_(std::move(door)), endpoint_(endpoint) {}

TcpListener::~TcpListener() {
  if (loop_.in_forked_child()) {
    // What it holds is the parent's: the sockets, and the epoll set they are in.
    static_cast<void>(std::make_unique<std::shared_ptr<Door>>(std::move(door_)).release());
    return;
  }
  loop_.run_and_drain([this] { door_->close_on_loop(); });
}

void TcpListener::accept(const Deadline& deadline, Connected done) {
  if (loop_.in_forked_child()) return done(forked(identity_, "accept"));
  loop_.post([door = door_, at = loop_.time_of(deadline), done = std::move(done)]() mutable {
    door->queue().accept_on_loop(at, std::move(done));
  });
}

void TcpListener::close() {
  if (!loop_.in_forked_child()) loop_.post([door = door_] { door->close_on_loop(); });
}

}  // namespace lockstep::transport::tcp
