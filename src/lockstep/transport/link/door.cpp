#include "lockstep/transport/link/door.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/base/log.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/store/tcp_greeter.h"
#include "lockstep/store/tcp_listener.h"
#include "lockstep/transport/congestion.h"
#include "lockstep/transport/link/errand.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/parties.h"

namespace lockstep::transport::link {
namespace {

constexpr Logger kLog("link");
constexpr std::string_view kHandshake = "the handshake of a link";
constexpr auto kLogPeriod = std::chrono::minutes(1);
constexpr Duration kAttempt = std::chrono::milliseconds(500);
constexpr Duration kPause = std::chrono::milliseconds(20);

constexpr std::size_t kNewsChecksum = 4;

void tune(int socket, const std::string& congestion_control) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  choose_congestion_control(socket, congestion_control);
}

// Ok is the answer of one that has left the group.
Buffer write_news(std::uint64_t group, const Status& news) {
  Buffer bytes;
  base::ByteWriter out(bytes);
  if (news.ok()) {
    out.raw(write_errand({.kind = ErrandKind::kHasLeft, .group = group}));
    return bytes;
  }
  const Buffer status = base::write_status(news);
  out.raw(write_errand(
      {.kind = ErrandKind::kNews, .group = group, .stream = static_cast<std::uint16_t>(status.size())}));
  out.raw(status);
  out.integer(base::crc32c(status));
  return bytes;
}

// What follows the errand. Nothing if it is damaged.
std::optional<Status> parse_news(ByteView bytes) {
  const ByteView status = bytes.first(bytes.size() - kNewsChecksum);
  std::uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + status.size(), sizeof(crc));
  if (crc != base::crc32c(status)) return std::nullopt;
  return base::parse_status(status);
}

}  // namespace

class Door::Impl {
 public:
  Impl(std::unique_ptr<Loop> loop, DoorOptions options)
      : options_(std::move(options)),
        job_(base::job_hash(options_.identity.job_id)),
        log_limit_(kLogPeriod, loop->clock()),
        lobby_(options_.max_waiting),
        loop_(std::move(loop)) {}

  ~Impl() { close(); }

  void close() {
    loop_->run_and_drain([this] {
      listeners_.clear();
      greeter_.reset();
      newcomers_.clear();
    });
  }

  Loop& loop() { return *loop_; }
  const Identity& identity() const { return options_.identity; }
  const std::vector<base::SocketAddress>& addresses() const { return addresses_; }

  Status open() {
    std::vector<UniqueFd> sockets;
    for (const base::SocketAddress& address : options_.addresses) {
      LOCKSTEP_TRY(refuse_open_listener(identity(), address, options_.open_to_all));
      LOCKSTEP_ASSIGN(sockets.emplace_back(), base::listen_on(address));
      LOCKSTEP_ASSIGN(addresses_.emplace_back(), base::local_address(sockets.back().get()));
    }
    loop_->post([this, sockets = std::move(sockets)]() mutable { open_on_loop(std::move(sockets)); });
    return {};
  }

  Lobby& lobby() { return lobby_; }

 private:
  // One who has passed the handshake and has yet to say what it comes for.
  struct Newcomer {
    explicit Newcomer(Loop& loop) : socket(loop.context()), limit(loop) {}
    asio::posix::stream_descriptor socket;
    std::unique_ptr<base::ForkGuard> guard;
    base::SessionKeys keys;
    Rank rank;
    store::PeerName peer;
    Buffer bytes = Buffer(kErrandSize);  // the errand, then the news, with their checksum
    std::size_t count = 0;
    Timer limit;
  };
  // Shared with the handler that waits for its bytes, which may run after it was dropped.
  using NewcomerPtr = std::shared_ptr<Newcomer>;

  void open_on_loop(std::vector<UniqueFd> sockets) {
    asio::io_context& context = loop_->context();
    greeter_ = std::make_unique<store::Greeter>(
        context, loop_->clock(), log_limit_,
        store::Greeter::Limits{.unproven = options_.max_unproven, .handshake = options_.handshake_timeout},
        store::Greeter::Callbacks{
            .decide = [this](const base::ClientClaim& claim) { return decide_on_loop(claim); },
            .judge_proven =
                [this](const base::ClientClaim&) {
                  return newcomers_.size() < options_.max_waiting ? base::Verdict::kAccepted
                                                                  : base::Verdict::kTooMany;
                },
            .admit = [this](store::Guest guest) { admit_on_loop(std::move(guest)); },
            .has_room =
                [this] {
                  for (const auto& listener : listeners_) listener->accept_on_loop();
                },
            .warn = [this](std::string_view line) { kLog.warn(cat(identity().text(), ": ", line)); },
            .cannot_accept = [this](const Status& why) { close_on_loop(why); }});
    for (UniqueFd& socket : sockets) {
      listeners_.push_back(
          std::make_unique<store::Listener>(context, std::move(socket), *greeter_, log_limit_, "accept"));
      listeners_.back()->accept_on_loop();
    }
  }

  // Whoever knocks would wait for an answer that cannot come.
  void close_on_loop(const Status& why) {
    Cause cause = why.cause();
    cause.rank = cause.peer = identity().rank;
    lobby_.tell_all(why.with_cause(std::move(cause)).with_prefix(cat(identity().text(), ": ")));
  }

  base::ServerHandshake::Decision decide_on_loop(const base::ClientClaim& claim) const {
    if (claim.role != base::Role::kData) return {.verdict = base::Verdict::kWrongRole, .secret = {}};
    if (claim.job != job_) return {.verdict = base::Verdict::kWrongJob, .secret = {}};
    if (claim.epoch != identity().epoch) return {.verdict = base::Verdict::kWrongEpoch, .secret = {}};
    return {.secret = identity().secret};
  }

  void admit_on_loop(store::Guest guest) {
    const auto newcomer = std::make_shared<Newcomer>(*loop_);
    newcomer->keys = *guest.keys;
    newcomer->rank = Rank(static_cast<int>(guest.claim.rank));
    newcomer->peer = std::move(guest.peer);
    newcomer->guard = std::move(guest.guard);
    asio::error_code error;
    newcomer->socket.assign(guest.socket.get(), error);
    if (error) return;
    (void)guest.socket.release();
    newcomers_.insert(newcomer);
    newcomer->limit.arm_on_loop(loop_->clock().now() + options_.errand_timeout,
                                [this, weak = std::weak_ptr(newcomer)] {
                                  if (const auto late = weak.lock())
                                    drop_on_loop(late, "it did not say what it comes for in time");
                                });
    read_on_loop(newcomer);
  }

  void read_on_loop(const NewcomerPtr& newcomer) {
    while (true) {
      const ByteSpan rest = ByteSpan(newcomer->bytes).subspan(newcomer->count);
      const ssize_t got = ::recv(newcomer->socket.native_handle(), rest.data(), rest.size(), MSG_DONTWAIT);
      if (got > 0) newcomer->count += static_cast<std::size_t>(got);
      if (newcomer->count == newcomer->bytes.size()) {
        if (!understand_on_loop(newcomer)) continue;
        return;
      }
      if (got > 0 || (got < 0 && errno == EINTR)) continue;
      if (got == 0 || errno != EAGAIN) return drop_on_loop(newcomer, "it closed the connection");
      break;
    }
    newcomer->socket.async_wait(asio::posix::descriptor_base::wait_read,
                                [this, weak = std::weak_ptr(newcomer)](asio::error_code error) {
                                  const auto still = weak.lock();
                                  if (!error && still) read_on_loop(still);
                                });
  }

  // False if there is more to read.
  bool understand_on_loop(const NewcomerPtr& newcomer) {
    const auto errand = parse_errand(ByteView(newcomer->bytes).first<kErrandSize>());
    if (!errand.ok() || errand->kind == ErrandKind::kHasLeft) {
      drop_on_loop(newcomer, errand.ok() ? "it answers news that nobody brought" : errand.status().message());
      return true;
    }
    const ByteView rest = ByteView(newcomer->bytes).subspan(kErrandSize);
    if (errand->kind == ErrandKind::kLink) {
      hand_over_on_loop(newcomer, *errand);
    } else if (rest.empty()) {
      newcomer->bytes.resize(kErrandSize + errand->stream + kNewsChecksum);
      return false;
    } else {
      hear_on_loop(newcomer, errand->group, rest);
    }
    return true;
  }

  void hand_over_on_loop(const NewcomerPtr& newcomer, const Errand& errand) {
    newcomer->limit.disarm_on_loop();
    newcomer->guard.reset();
    Arrival arrival{.socket = UniqueFd(newcomer->socket.release()), .keys = newcomer->keys};
    tune(arrival.socket.get(), options_.congestion_control);
    newcomers_.erase(newcomer);
    const Status put = lobby_.put(errand.group, newcomer->rank, errand.stream, std::move(arrival));
    if (!put.ok()) greeter_->log_rejection(newcomer->peer, put.message());
  }

  void hear_on_loop(const NewcomerPtr& newcomer, std::uint64_t group, ByteView news) {
    const auto told = parse_news(news);
    if (!told) return drop_on_loop(newcomer, "its news arrived damaged");
    if (const auto known = lobby_.tell(group, *told)) {
      const Buffer answer = write_news(group, *known);
      // So little fits into the buffer of a socket on which nothing was sent but the handshake.
      (void)::send(newcomer->socket.native_handle(), answer.data(), answer.size(),
                   MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    newcomer->limit.disarm_on_loop();
    newcomer->guard.reset();
    newcomers_.erase(newcomer);
    asio::error_code ignored;
    newcomer->socket.close(ignored);
  }

  void drop_on_loop(const NewcomerPtr& newcomer, std::string_view why) {
    if (newcomers_.erase(newcomer) == 0) return;
    newcomer->limit.disarm_on_loop();
    newcomer->guard.reset();
    if (greeter_) greeter_->log_rejection(newcomer->peer, why);
    asio::error_code ignored;
    newcomer->socket.close(ignored);
  }

  const DoorOptions options_;
  const base::JobHash job_;
  base::RateLimit log_limit_;
  std::vector<base::SocketAddress> addresses_;
  std::unique_ptr<store::Greeter> greeter_;
  std::vector<std::unique_ptr<store::Listener>> listeners_;
  std::set<NewcomerPtr> newcomers_;
  Lobby lobby_;
  const std::unique_ptr<Loop> loop_;  // last: what is posted to it uses the others
};

Door::Door(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Door::~Door() {
  // Listeners and the epoll set they are in are the parent's.
  if (impl_->loop().in_forked_child()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<Door>> Door::open(DoorOptions options, const Clock& clock) {
  LOCKSTEP_ASSIGN(auto loop, Loop::start("lockstep-door", clock));
  auto impl = std::make_unique<Impl>(std::move(loop), std::move(options));
  LOCKSTEP_TRY(impl->open());
  return std::unique_ptr<Door>(new Door(std::move(impl)));
}

const std::vector<base::SocketAddress>& Door::addresses() const { return impl_->addresses(); }

Result<std::shared_ptr<Inbox>> Door::inbox(std::uint64_t group) { return impl_->lobby().inbox(group); }

void Door::tell_all(const Status& news) { impl_->lobby().tell_all(news); }

void Door::listen_for_news(std::uint64_t group, Lobby::Hear hear) {
  impl_->lobby().listen_for_news(group, std::move(hear));
}

void Door::forget(std::uint64_t group) { impl_->lobby().forget(group); }

void Door::close() { impl_->close(); }

namespace {

// To the first address that answers.
Result<UniqueFd> connect(const Knock& knock, const Deadline& deadline) {
  while (true) {
    Status last = Status::invalid("it has no address to connect to", {.failure = Failure::kPeerUnreachable});
    bool unanswered = false;
    for (const base::SocketAddress& address : knock.addresses) {
      auto connected = base::connect_to(address, deadline.at_most(kAttempt), base::OnRefused::kFail);
      if (connected.ok()) return connected;
      last = connected.status();
      unanswered |= last.code() == Code::kTimeout;
    }
    if (!unanswered || deadline.expired()) return last;
    LOCKSTEP_TRY(knock.look());
  }
}

// A wire that is cut now says nothing more: what has not come of the answer is waited for between looks.
Status recv_answer(const Knock& knock, int socket, ByteSpan answer, const Deadline& limit) {
  while (!limit.expired()) {
    pollfd coming{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&coming, 1, limit.at_most(kAttempt).poll_millis()) > 0) {
      const ssize_t got = ::recv(socket, answer.data(), answer.size(), MSG_DONTWAIT);
      if (got > 0) answer = answer.subspan(static_cast<std::size_t>(got));
      if (answer.empty()) return {};
      if (got == 0) break;
    }
    LOCKSTEP_TRY(knock.look());
  }
  return base::recv_all(socket, answer, limit, kHandshake);
}

// Connects, and passes the handshake.
Result<Arrival> try_to_enter(const Knock& knock, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(UniqueFd socket, connect(knock, deadline));
  tune(socket.get(), knock.congestion_control);
  const Identity& identity = knock.identity;
  base::ClientHandshake handshake(
      {.role = base::Role::kData,
       .job_id = identity.job_id,
       .epoch = identity.epoch,
       .rank = identity.rank ? static_cast<std::uint32_t>(identity.rank->value) : base::kNoRank},
      identity.secret);
  LOCKSTEP_TRY(base::send_all(socket.get(), handshake.hello(), deadline, kHandshake));
  std::array<std::byte, base::kServerHelloSize> hello;
  LOCKSTEP_TRY(recv_answer(knock, socket.get(), hello, deadline));
  LOCKSTEP_ASSIGN(const auto proof, handshake.on_server_hello(hello));
  LOCKSTEP_TRY(base::send_all(socket.get(), proof, deadline, kHandshake));
  std::array<std::byte, base::kVerdictSize> verdict;
  LOCKSTEP_TRY(recv_answer(knock, socket.get(), verdict, deadline));
  LOCKSTEP_TRY(handshake.on_verdict(verdict));
  const base::SessionKeys keys = handshake.keys();
  return Arrival{.socket = std::move(socket), .keys = keys};
}

// A door closes on whoever takes too long for its handshake, as on a machine that has too much to do. That is
// no word of the process behind it: as long as there is time, we come again. If it has died, nobody listens.
Result<Arrival> enter(const Knock& knock, const Deadline& deadline) {
  while (true) {
    auto arrival = try_to_enter(knock, deadline);
    const bool closed =
        arrival.status().code() == Code::kDisconnected && arrival.status().failure() == Failure::kNone;
    if (!closed || deadline.expired()) return arrival;
    LOCKSTEP_TRY(knock.look());
    (void)::poll(nullptr, 0, deadline.at_most(kPause).poll_millis());
  }
}

}  // namespace

Result<Arrival> knock(const Knock& knock, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(Arrival arrival, enter(knock, deadline));
  const auto errand = write_errand({.group = knock.group, .stream = knock.stream});
  LOCKSTEP_TRY(base::send_all(arrival.socket.get(), errand, deadline, kHandshake));
  return arrival;
}

Result<NewsAnswer> bring_news(const Knock& knock, const Status& news, const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const Arrival arrival, enter(knock, deadline));
  constexpr std::string_view kNews = "news of a failed group";
  LOCKSTEP_TRY(base::send_all(arrival.socket.get(), write_news(knock.group, news), deadline, kNews));
  std::array<std::byte, kErrandSize> begin;
  LOCKSTEP_TRY(recv_answer(knock, arrival.socket.get(), begin, deadline));
  LOCKSTEP_ASSIGN(const Errand errand, parse_errand(begin));
  if (errand.group != knock.group || errand.kind == ErrandKind::kLink) {
    return Status::disconnected("its answer to news is none", {.failure = Failure::kCorruptFrame});
  }
  if (errand.kind == ErrandKind::kHasLeft) return NewsAnswer{};
  Buffer rest(errand.stream + kNewsChecksum);
  LOCKSTEP_TRY(recv_answer(knock, arrival.socket.get(), rest, deadline));
  if (const auto known = parse_news(rest)) return NewsAnswer{*known};
  return Status::disconnected("its answer to news arrived damaged", {.failure = Failure::kCorruptFrame});
}

}  // namespace lockstep::transport::link
