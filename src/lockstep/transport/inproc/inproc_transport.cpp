#include "lockstep/transport/inproc/inproc_transport.h"

#include <map>
#include <utility>

#include "lockstep/base/crypto.h"
#include "lockstep/base/handshake.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/text.h"
#include "lockstep/transport/accept_queue.h"
#include "lockstep/transport/inproc/pipe.h"
#include "lockstep/transport/introduction.h"
#include "lockstep/transport/loop.h"
#include "lockstep/transport/stream.h"

namespace lockstep::transport::inproc {
namespace {

// Each time that it is full costs two switches between threads.
constexpr std::size_t kPipeCapacity = 1U << 20;

class InprocWire final : public Wire {
 public:
  InprocWire(Loop& loop, std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out)
      : loop_(loop), in_(std::move(in)), out_(std::move(out)) {}

  void start_on_loop(std::function<void()> wake) override {
    in_->attach(Pipe::End::kReader, loop_, wake);
    out_->attach(Pipe::End::kWriter, loop_, std::move(wake));
  }
  Result<std::size_t> write_on_loop(ByteView bytes) override {
    auto count = out_->write(bytes);
    if (count.ok()) taken_ += *count;
    return count;
  }
  std::uint64_t taken() const override { return taken_; }
  Result<std::uint64_t> flush_on_loop() override { return taken_; }
  Result<std::size_t> read_on_loop(ByteSpan bytes) override { return in_->read(bytes); }
  void close_on_loop() override {
    out_->leave(Pipe::End::kWriter);
    in_->leave(Pipe::End::kReader);
  }

 private:
  Loop& loop_;
  const std::shared_ptr<Pipe> in_;  // shared by the two ends
  const std::shared_ptr<Pipe> out_;
  std::uint64_t taken_ = 0;
};

Introduction introduction_of(const Identity& identity) {
  return {.rank = identity.rank, .world = identity.world};
}

// What the handshake would find.
base::Verdict verdict_of(const Identity& client, const Identity& server) {
  if (client.job_id != server.job_id) return base::Verdict::kWrongJob;
  if (client.epoch != server.epoch) return base::Verdict::kWrongEpoch;
  const bool same = base::equal_in_constant_time(client.secret.bytes(), server.secret.bytes());
  return same ? base::Verdict::kAccepted : base::Verdict::kWrongSecret;
}

std::unique_ptr<StreamConnection> open_on(Loop& loop, Parties parties, std::shared_ptr<Pipe> in,
                                          std::shared_ptr<Pipe> out) {
  auto stream = std::make_shared<Stream>(loop, std::move(parties),
                                         std::make_shared<InprocWire>(loop, std::move(in), std::move(out)));
  stream->start_on_loop();
  return std::make_unique<StreamConnection>(std::move(stream));
}

// A listener as connecting ranks see it, from their own loops.
class Door {
 public:
  Door(Loop& loop, const Identity& identity, const base::Endpoint& endpoint)
      : loop_(&loop),
        identity_(identity),
        endpoint_(endpoint),
        queue_(std::make_shared<AcceptQueue>(loop, identity, endpoint)) {}

  const Identity& identity() const { return identity_; }
  const base::Endpoint& endpoint() const { return endpoint_; }
  AcceptQueue& queue() { return *queue_; }

  // False if the listener has closed.
  bool knock(Parties parties, std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out) {
    const MutexLock lock(mutex_);
    if (loop_ == nullptr) return false;
    loop_->post([loop = loop_, queue = queue_, parties = std::move(parties), in = std::move(in),
                 out = std::move(out)]() mutable {
      // Made and dropped at once if the listener has closed meanwhile: the peer hears a goodbye.
      queue->offer_on_loop(open_on(*loop, std::move(parties), std::move(in), std::move(out)));
    });
    return true;
  }
  // From here on the loop is not touched.
  void shut() {
    const MutexLock lock(mutex_);
    loop_ = nullptr;
  }

 private:
  Mutex mutex_;
  Loop* loop_ LOCKSTEP_GUARDED_BY(mutex_);
  const Identity identity_;
  const base::Endpoint endpoint_;
  const std::shared_ptr<AcceptQueue> queue_;  // shared with what is posted to its loop
};

}  // namespace

class InprocNetwork::Doors {
 public:
  std::shared_ptr<Door> find(std::uint16_t port) {
    const MutexLock lock(mutex_);
    const auto found = doors_.find(port);
    return found == doors_.end() ? nullptr : found->second;
  }

  Result<std::shared_ptr<Door>> add(Loop& loop, const Identity& identity, std::uint16_t port) {
    const MutexLock lock(mutex_);
    if (port == 0) {
      do {
        ++last_port_;
      } while (last_port_ == 0 || doors_.contains(last_port_));
      port = last_port_;
    }
    const base::Endpoint endpoint{.host = InprocTransport::kHost, .port = port};
    if (doors_.contains(port)) {
      return Status::invalid(cat("Another listener of this process is at ", endpoint.text(), " already."),
                             {.failure = Failure::kPortTaken});
    }
    return doors_[port] = std::make_shared<Door>(loop, identity, endpoint);
  }

  void remove(const std::shared_ptr<Door>& door) {
    door->shut();
    const MutexLock lock(mutex_);
    const auto found = doors_.find(door->endpoint().port);
    if (found != doors_.end() && found->second == door) doors_.erase(found);
  }

 private:
  Mutex mutex_;
  std::map<std::uint16_t, std::shared_ptr<Door>> doors_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint16_t last_port_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

InprocNetwork::InprocNetwork() : doors_(std::make_shared<Doors>()) {}
InprocNetwork::~InprocNetwork() = default;

class InprocTransport::Impl {
 public:
  Impl(std::unique_ptr<Loop> loop, std::shared_ptr<InprocNetwork::Doors> doors, Identity identity)
      : doors_(std::move(doors)), identity_(std::move(identity)), loop_(std::move(loop)) {}

  void connect(const Target& target, Connected done) {
    if (loop_->in_forked_child()) return done(forked(identity_, "connect"));
    loop_->post([this, target, done = std::move(done)] { done(connect_on_loop(target)); });
  }

  Result<std::unique_ptr<Listener>> listen(const base::Endpoint& bind) {
    if (loop_->in_forked_child()) return forked(identity_, "listen");
    if (bind.host != kHost) {
      return Status::invalid(
          cat("Ranks in one process listen at \"", kHost, ":0\", not at ", bind.text(), "."));
    }
    LOCKSTEP_ASSIGN(auto door, doors_->add(*loop_, identity_, bind.port));
    return std::unique_ptr<Listener>(std::make_unique<InprocListener>(*loop_, doors_, std::move(door)));
  }

  const Clock& clock() const { return loop_->clock(); }
  Loop& loop() { return *loop_; }
  bool in_forked_child() const { return loop_->in_forked_child(); }

 private:
  class InprocListener final : public Listener {
   public:
    InprocListener(Loop& loop, std::shared_ptr<InprocNetwork::Doors> doors, std::shared_ptr<Door> door)
        : loop_(loop), guest_(loop), doors_(std::move(doors)), door_(std::move(door)) {}
    ~InprocListener() override {
      if (loop_.in_forked_child()) {
        // Its locks may be held by threads that are not in this process.
        static_cast<void>(std::make_unique<std::shared_ptr<Door>>(std::move(door_)).release());
        return;
      }
      doors_->remove(door_);
      loop_.run_and_drain([this] { door_->queue().close_on_loop(); });
    }
    void accept(const Deadline& deadline, Connected done) override {
      if (loop_.in_forked_child()) return done(forked(door_->identity(), "accept"));
      loop_.post([door = door_, at = loop_.time_of(deadline), done = std::move(done)]() mutable {
        door->queue().accept_on_loop(at, std::move(done));
      });
    }
    void close() override {
      if (loop_.in_forked_child()) return;
      doors_->remove(door_);
      loop_.post([door = door_] { door->queue().close_on_loop(); });
    }
    const base::Endpoint& endpoint() const override { return door_->endpoint(); }

   private:
    Loop& loop_;
    const Loop::Guest guest_;
    const std::shared_ptr<InprocNetwork::Doors> doors_;
    std::shared_ptr<Door> door_;  // shared with ranks that are knocking
  };

  Result<std::unique_ptr<Connection>> connect_on_loop(const Target& target) {
    const Parties parties = Parties::of(identity_, {.rank = target.rank, .host = target.endpoint.text()});
    const auto fail = [&](const Status& status) { return parties.blame(status, "connect", "connect to"); };
    const auto nobody = [&] {
      return fail(Status::disconnected("nobody listens there", {.failure = Failure::kPeerUnreachable}));
    };
    const auto door = target.endpoint.host == kHost ? doors_->find(target.endpoint.port) : nullptr;
    if (!door) return nobody();
    const base::Verdict verdict = verdict_of(identity_, door->identity());
    if (verdict != base::Verdict::kAccepted) {
      return fail(
          Status::invalid(cat("it refused: ", base::verdict_text(verdict)), {.failure = Failure::kRejected}));
    }
    const Status judged =
        judge_introduction(introduction_of(identity_), introduction_of(door->identity()), target.rank);
    if (!judged.ok()) return fail(judged);
    auto there = std::make_shared<Pipe>(kPipeCapacity);
    auto back = std::make_shared<Pipe>(kPipeCapacity);
    const std::string own_name = cat(kHost, " of ", identity_.text());
    Parties of_peer = Parties::of(door->identity(), {.rank = identity_.rank, .host = own_name});
    if (!door->knock(std::move(of_peer), there, back)) return nobody();
    Peer peer{.rank = door->identity().rank, .host = target.endpoint.text()};
    return std::unique_ptr<Connection>(
        open_on(*loop_, Parties::of(identity_, std::move(peer)), std::move(back), std::move(there)));
  }

  const std::shared_ptr<InprocNetwork::Doors> doors_;
  const Identity identity_;
  const std::unique_ptr<Loop> loop_;  // last: what is posted to it uses the others
};

Result<std::unique_ptr<InprocTransport>> InprocTransport::create(InprocNetwork& network, Identity identity,
                                                                 const Clock& clock) {
  LOCKSTEP_ASSIGN(auto loop, Loop::start("lockstep-inproc", clock));
  return std::unique_ptr<InprocTransport>(
      new InprocTransport(std::make_unique<Impl>(std::move(loop), network.doors_, std::move(identity))));
}

InprocTransport::InprocTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
InprocTransport::~InprocTransport() {
  // A thread that is not in a forked child may have been about to change what it shares.
  if (impl_->in_forked_child()) static_cast<void>(impl_.release());
}

void InprocTransport::connect(const Target& target, const Deadline&, Connected done) {
  impl_->connect(target, std::move(done));
}

Result<std::unique_ptr<Listener>> InprocTransport::listen(const base::Endpoint& bind) {
  return impl_->listen(bind);
}

const Clock& InprocTransport::clock() const { return impl_->clock(); }

Loop& InprocTransport::loop() { return impl_->loop(); }

}  // namespace lockstep::transport::inproc
