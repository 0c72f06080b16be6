// Damage on the wire between two real ends, made by a proxy: cuts, flips and slices.
#include <gtest/gtest.h>

#include <random>

#include "lockstep/base/mutex.h"
#include "lockstep/testing/connection_calls.h"
#include "lockstep/testing/fault_proxy.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/tcp/tcp_transport.h"

namespace lockstep::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using transport::Connection;
using transport::Listener;
using transport::tcp::TcpTransport;
using Faults = FaultProxy::Faults;
using Cut = FaultProxy::Cut;
using Direction = FaultProxy::Direction;

constexpr std::size_t kSize = 5000;
// What the server sends before its first data: hello, verdict, introduction.
constexpr std::uint64_t kOpeningToClient = 72 + 8 + 30;

// Accepts every connection, and keeps what became of one operation on each.
class Server {
 public:
  using Start = std::function<void(Connection&, Buffer&, transport::Done)>;
  Server(std::unique_ptr<Listener> listener, Start start)
      : listener_(std::move(listener)), start_(std::move(start)) {
    accept_next();
  }

  // Closes; every operation that was started has then come to its end.
  std::vector<Status> finish() {
    listener_->close();
    const base::MutexLock lock(mutex_);
    const Deadline deadline = soon();
    while ((!closed_ || outcomes_.size() < started_) && changed_.wait_until(mutex_, deadline)) {
    }
    EXPECT_TRUE(closed_);
    EXPECT_EQ(outcomes_.size(), started_);
    return outcomes_;
  }

 private:
  struct Visit {
    std::unique_ptr<Connection> connection;
    Buffer bytes;
  };

  void accept_next() {
    listener_->accept(Clock::steady().in(std::chrono::hours(1)), [this](ConnectionResult connection) {
      if (!connection.ok()) {
        const base::MutexLock lock(mutex_);
        closed_ = true;
        return changed_.notify_all();
      }
      {
        const base::MutexLock lock(mutex_);
        ++started_;
      }
      const auto visit = std::make_shared<Visit>(Visit{std::move(connection).value(), pattern(kSize, 1)});
      start_(*visit->connection, visit->bytes, [this, visit](const Status& status) {
        const base::MutexLock lock(mutex_);
        outcomes_.push_back(status);
        changed_.notify_all();
      });
      accept_next();
    });
  }

  const std::unique_ptr<Listener> listener_;
  const Start start_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::size_t started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<Status> outcomes_ LOCKSTEP_GUARDED_BY(mutex_);
};

class TcpFaults : public ::testing::Test {
 protected:
  TcpFaults()
      : listener_(rank1_->listen({.host = "127.0.0.1", .port = 0}).value()), proxy_(listener_->endpoint()) {}

  ConnectionResult connect_with(const Faults& faults) {
    proxy_.set(faults);
    return await(connect(*rank0_, {.endpoint = proxy_.endpoint(), .rank = Rank(1)}, soon()));
  }
  // Rank 1 receives kSize bytes on every connection, or sends them.
  std::unique_ptr<Server> receiving() {
    return std::make_unique<Server>(std::move(listener_),
                                    [](Connection& connection, Buffer& bytes, transport::Done done) {
                                      connection.recv(bytes, soon(), std::move(done));
                                    });
  }
  std::unique_ptr<Server> sending() {
    return std::make_unique<Server>(std::move(listener_),
                                    [](Connection& connection, Buffer& bytes, transport::Done done) {
                                      connection.send(bytes, soon(), std::move(done));
                                    });
  }

  std::unique_ptr<TcpTransport> rank0_ = TcpTransport::create({.identity = identity_of(0)}).value();
  std::unique_ptr<TcpTransport> rank1_ =
      TcpTransport::create({.identity = identity_of(1), .max_connections = 100'000}).value();
  std::unique_ptr<Listener> listener_;
  FaultProxy proxy_;
};

// Odd, so that both kinds of cuts come.
constexpr std::uint64_t kStep = kSanitized ? 11 : 1;

// F8. Never a message that is taken for whole.
TEST_F(TcpFaults, CutAfterEveryNumberOfBytesToTheServer) {
  const auto server = receiving();
  const Buffer bytes = pattern(kSize, 1);
  for (std::uint64_t count = 0; count <= 4096; count += kStep) {
    auto client = connect_with({.cut_after = count, .cut = count % 2 == 0 ? Cut::kFin : Cut::kReset});
    if (client.ok()) {
      ASSERT_THAT(await(send(**client, bytes, soon())), AnyOf(IsOk(), StatusIs(Code::kDisconnected)))
          << count;
    } else {
      ASSERT_THAT(client.status(), StatusIs(Code::kDisconnected, HasSubstr("rank 1"))) << count;
      ASSERT_THAT(client.status(), FailureIs(Failure::kPeerDied)) << count;
    }
  }
  const std::vector<Status> outcomes = server->finish();
  EXPECT_GT(outcomes.size(), 1000 / kStep);
  for (const Status& status : outcomes) {
    ASSERT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("recv of 4.9 KiB from rank 0")));
    ASSERT_THAT(status, FailureIs(Failure::kPeerDied));
  }
}

TEST_F(TcpFaults, CutAfterEveryNumberOfBytesToTheClient) {
  const auto server = sending();
  std::uint64_t received = 0;
  for (std::uint64_t count = 0; count <= 4096; count += kStep) {
    const Cut cut = count % 2 == 0 ? Cut::kFin : Cut::kReset;
    auto client = connect_with({.direction = Direction::kToClient, .cut_after = count, .cut = cut});
    if (!client.ok()) {
      ASSERT_THAT(client.status(), StatusIs(Code::kDisconnected, HasSubstr("rank 1"))) << count;
      // A reset takes along what was not read yet.
      ASSERT_TRUE(count < kOpeningToClient || cut == Cut::kReset) << count << ": " << client.status().text();
      continue;
    }
    ASSERT_GE(count, kOpeningToClient);
    ++received;
    Buffer got(kSize);
    ASSERT_THAT(await(recv(**client, got, soon())), StatusIs(Code::kDisconnected, HasSubstr("rank 1")))
        << count;
  }
  EXPECT_GT(received, 1000 / kStep);
  for (const Status& status : server->finish()) {
    ASSERT_THAT(status, AnyOf(IsOk(), StatusIs(Code::kDisconnected)));
  }
}

// F10 in small; record_test.cpp flips ten thousand.
TEST_F(TcpFaults, NoFlippedBitIsEverTakenForData) {
  const auto server = receiving();
  const Buffer bytes = pattern(kSize, 1);
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t bit = i < 150 ? random() % (8UL * 134) : random() % (8UL * 4000);
    auto client = connect_with({.flip_bit = bit});
    if (!client.ok()) continue;
    ASSERT_THAT(await(send(**client, bytes, soon())), AnyOf(IsOk(), StatusIs(Code::kDisconnected)));
  }
  for (const Status& status : server->finish()) {
    ASSERT_THAT(status, StatusIs(Code::kDisconnected));
    ASSERT_THAT(status, AnyOf(FailureIs(Failure::kCorruptFrame), FailureIs(Failure::kLimitExceeded),
                              // A longer length: the reader waits until the stream ends.
                              FailureIs(Failure::kPeerDied)));
  }
}

// F9.
TEST_F(TcpFaults, OneByteAtATimeIsOnlySlow) {
  for (const Direction direction : {Direction::kToServer, Direction::kToClient}) {
    auto accepted = accept(*listener_, soon());
    auto client = connect_with({.direction = direction, .slice = 1});
    ASSERT_OK(client);
    ASSERT_OK_AND_ASSIGN(const auto server, await(std::move(accepted)));
    const Buffer bytes = pattern(20'000, 1);
    Buffer got(bytes.size());
    const bool to_server = direction == Direction::kToServer;
    auto sent = send(to_server ? **client : *server, bytes, soon());
    ASSERT_OK(await(recv(to_server ? *server : **client, got, soon())));
    EXPECT_OK(await(std::move(sent)));
    EXPECT_TRUE(got == bytes);
  }
}

}  // namespace
}  // namespace lockstep::testing
