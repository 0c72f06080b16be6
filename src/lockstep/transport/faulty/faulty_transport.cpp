#include "lockstep/transport/faulty/faulty_transport.h"

#include <utility>

#include "lockstep/base/mutex.h"
#include "lockstep/transport/faulty/faulty_connection.h"
#include "lockstep/transport/loop.h"

namespace lockstep::transport::faulty {

class FaultyTransport::Impl {
 public:
  Impl(std::unique_ptr<Loop> loop, std::unique_ptr<Transport> inner, const Faults& faults)
      : faults_(faults), loop_(std::move(loop)), inner_(std::move(inner)) {}

  ~Impl() {
    {
      const MutexLock lock(mutex_);
      closing_ = true;
    }
    // Connections that are on their way to their users.
    loop_->run_and_drain([] {});
  }

  Transport& inner() { return *inner_; }
  Loop& loop() { return *loop_; }

  // A callback for the inner transport that wraps what it gets. In a forked child that is an error, inside
  // the call.
  Connected wrapping(Connected done) {
    if (loop_->in_forked_child()) return done;
    return [this, done = std::move(done)](Result<std::unique_ptr<Connection>> inner) mutable {
      std::unique_ptr<Connection> dropped;  // destroyed without the lock
      const MutexLock lock(mutex_);
      if (closing_ && inner.ok()) {
        dropped = std::move(inner).value();
        inner =
            Status::aborted("The transport was destroyed.", {.failure = Failure::kClosed, .op = "connect"});
      }
      loop_->post([this, done = std::move(done), inner = std::move(inner)]() mutable {
        done(wrap_on_loop(std::move(inner)));
      });
    };
  }

 private:
  Result<std::unique_ptr<Connection>> wrap_on_loop(Result<std::unique_ptr<Connection>> inner) {
    if (!inner.ok()) return inner;
    auto stream = std::make_shared<FaultyStream>(*loop_, std::move(inner).value(), faults_);
    return std::unique_ptr<Connection>(std::make_unique<FaultyConnection>(std::move(stream)));
  }

  const Faults faults_;
  Mutex mutex_;
  bool closing_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  const std::unique_ptr<Loop> loop_;
  const std::unique_ptr<Transport> inner_;  // last: its callbacks post to the loop
};

namespace {

class FaultyListener final : public Listener {
 public:
  using Wrap = std::function<Connected(Connected)>;
  FaultyListener(Loop& loop, std::unique_ptr<Listener> inner, Wrap wrap)
      : loop_(loop),
        guest_(loop),
        inner_(std::move(inner)),
        endpoint_(inner_->endpoint()),
        wrap_(std::move(wrap)) {}
  ~FaultyListener() override {
    inner_.reset();
    loop_.run_and_drain([] {});
  }

  void accept(const Deadline& deadline, Connected done) override {
    inner_->accept(deadline, wrap_(std::move(done)));
  }
  void close() override { inner_->close(); }
  const base::Endpoint& endpoint() const override { return endpoint_; }

 private:
  Loop& loop_;
  const Loop::Guest guest_;
  std::unique_ptr<Listener> inner_;
  const base::Endpoint endpoint_;
  const Wrap wrap_;
};

}  // namespace

Result<std::unique_ptr<FaultyTransport>> FaultyTransport::create(std::unique_ptr<Transport> inner,
                                                                 const Faults& faults) {
  LOCKSTEP_ASSIGN(auto loop, Loop::start("lockstep-faulty", inner->clock()));
  return std::unique_ptr<FaultyTransport>(
      new FaultyTransport(std::make_unique<Impl>(std::move(loop), std::move(inner), faults)));
}

FaultyTransport::FaultyTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FaultyTransport::~FaultyTransport() {
  // A thread that is not in a forked child may have held its locks.
  if (impl_->loop().in_forked_child()) static_cast<void>(impl_.release());
}

void FaultyTransport::connect(const Target& target, const Deadline& deadline, Connected done) {
  impl_->inner().connect(target, deadline, impl_->wrapping(std::move(done)));
}

Result<std::unique_ptr<Listener>> FaultyTransport::listen(const base::Endpoint& bind) {
  LOCKSTEP_ASSIGN(auto inner, impl_->inner().listen(bind));
  return std::unique_ptr<Listener>(std::make_unique<FaultyListener>(
      impl_->loop(), std::move(inner),
      [impl = impl_.get()](Connected done) { return impl->wrapping(std::move(done)); }));
}

const Clock& FaultyTransport::clock() const { return impl_->inner().clock(); }

Loop& FaultyTransport::loop() { return impl_->loop(); }

}  // namespace lockstep::transport::faulty
