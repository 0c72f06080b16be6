#include "lockstep/transport/faulty/faulty_transport.h"

#include <bit>

#include "lockstep/testing/connection_conformance.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/transport/inproc/inproc_transport.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using transport::Connection;
using transport::Identity;
using transport::Listener;
using transport::Transport;
using transport::faulty::Faults;
using transport::faulty::FaultyTransport;
using transport::faulty::Pieces;
using transport::inproc::InprocNetwork;
using transport::inproc::InprocTransport;

class FaultyTransports : public TransportFamily {
 public:
  explicit FaultyTransports(const Faults& faults) : faults_(faults) {}
  std::unique_ptr<Transport> make(const Identity& identity, const Clock& clock) override {
    return FaultyTransport::create(InprocTransport::create(network_, identity, clock).value(), faults_)
        .value();
  }
  base::Endpoint bind() const override { return {.host = "inproc", .port = 0}; }

 private:
  const Faults faults_;
  InprocNetwork network_;
};

class WithoutFaults final : public FaultyTransports {
 public:
  WithoutFaults() : FaultyTransports({}) {}
};

class ByteByByte final : public FaultyTransports {
 public:
  ByteByByte() : FaultyTransports({.pieces = Pieces::kOneByte}) {}
  std::size_t large() const override { return 5000; }
  int many() const override { return 300; }
};

LOCKSTEP_CONNECTION_CONFORMANCE(WithoutFaults, WithoutFaults);
LOCKSTEP_CONNECTION_CONFORMANCE(ByteByByte, ByteByByte);

// Rank 0 has the faults, rank 1 has none.
struct Pair {
  explicit Pair(const Faults& faults, const Clock& clock = Clock::steady())
      : from(FaultyTransport::create(InprocTransport::create(network, identity_of(0), clock).value(), faults)
                 .value()),
        to(InprocTransport::create(network, identity_of(1), clock).value()),
        listener(to->listen({.host = "inproc", .port = 0}).value()),
        client(await(connect(*from, {.endpoint = listener->endpoint()}, clock.in(std::chrono::minutes(5))))
                   .value()),
        server(await(accept(*listener, clock.in(std::chrono::minutes(5)))).value()) {}

  InprocNetwork network;
  std::unique_ptr<Transport> from;
  std::unique_ptr<Transport> to;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connection> client;
  std::unique_ptr<Connection> server;
};

Deadline soon() { return Clock::steady().in(std::chrono::minutes(5)); }

TEST(FaultyTransport, CutsAfterExactlyAsManyBytes) {
  for (const std::size_t cut : {0, 1, 7, 100, 4096}) {
    Pair pair(Faults{.cut_after = cut});
    const Buffer bytes = pattern(5000, 1);
    Buffer got(cut);
    auto received = recv(*pair.server, got, soon());
    const Status status = await(send(*pair.client, bytes, soon()));
    EXPECT_THAT(status, StatusIs(Code::kDisconnected, HasSubstr("rank 1")));
    EXPECT_OK(await(std::move(received)));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes.begin()));
    Buffer more(1);
    EXPECT_THAT(await(recv(*pair.server, more, soon())), StatusIs(Code::kDisconnected, HasSubstr("rank 0")));
    EXPECT_EQ(await(recv(*pair.client, more, soon())).text(), status.text());
  }
}

TEST(FaultyTransport, FlipsOneBitAtItsPlaceTheSameForTheSameSeed) {
  std::vector<Buffer> results;
  for (const std::uint64_t seed : {5, 5, 6, 7, 8, 9}) {
    Pair pair(Faults{.seed = seed, .flip_after = 1234});
    const Buffer bytes = pattern(2000, 2);
    Buffer got(bytes.size());
    for (const auto& [at, size] : {std::pair{0, 1000}, {1000, 1000}}) {
      EXPECT_OK(await(send(
          *pair.client, ByteView(bytes).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size)),
          soon())));
    }
    EXPECT_OK(await(recv(*pair.server, got, soon())));
    int bits = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const int changed = std::popcount(static_cast<unsigned>(bytes[i] ^ got[i]));
      bits += changed;
      if (changed > 0) {
        EXPECT_EQ(i, 1234U);
      }
    }
    EXPECT_EQ(bits, 1);
    results.push_back(got);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_TRUE(
      std::any_of(results.begin() + 2, results.end(), [&](const Buffer& b) { return b != results[0]; }));
}

TEST(FaultyTransport, DelaysOnTheInjectedClock) {
  FakeClock clock;
  Pair pair(Faults{.seed = 3, .max_delay = std::chrono::seconds(10)}, clock);
  const Buffer bytes = pattern(10, 3);
  auto sent = send(*pair.client, bytes, clock.in(std::chrono::minutes(1)));
  ASSERT_EQ(sent.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  clock.advance(std::chrono::seconds(10));
  EXPECT_OK(await(std::move(sent)));
  Buffer got(10);
  EXPECT_OK(await(recv(*pair.server, got, clock.in(std::chrono::minutes(1)))));
  EXPECT_EQ(got, bytes);
}

TEST(FaultyTransport, ADelayDoesNotOutlastADeadline) {
  FakeClock clock;
  Pair pair(Faults{.seed = 3, .max_delay = std::chrono::hours(1000)}, clock);
  Buffer got(10);
  auto received = recv(*pair.client, got, clock.in(std::chrono::seconds(1)));
  ASSERT_EQ(received.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  clock.advance(std::chrono::seconds(2));
  EXPECT_THAT(await(std::move(received)), StatusIs(Code::kTimeout));
}

}  // namespace
}  // namespace lockstep::testing
