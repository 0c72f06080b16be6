// The suite that every Transport must pass, with its connections and listeners. The test of a new one:
//
//   class InprocTransports final : public TransportFamily {
//    public:
//     std::unique_ptr<Transport> make(const Identity& identity, const Clock& clock) override {
//       return std::move(inproc::InprocTransport::create(network_, identity, clock)).value();
//     }
//     base::Endpoint bind() const override { return {.host = "inproc", .port = 0}; }
//    private:
//     inproc::InprocNetwork network_;
//   };
//   LOCKSTEP_CONNECTION_CONFORMANCE(Inproc, InprocTransports);
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/testing/connection_calls.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/transport/transport.h"

namespace lockstep::testing {

// Transports that can reach each other. It outlives them.
class TransportFamily {
 public:
  virtual ~TransportFamily() = default;
  // Ends the test's process if it cannot.
  virtual std::unique_ptr<transport::Transport> make(const transport::Identity& identity,
                                                     const Clock& clock) = 0;
  // Where to listen, with port 0.
  virtual base::Endpoint bind() const = 0;
  // For those that are slow on purpose: how much is a large message, and how many are many.
  virtual std::size_t large() const { return 16U << 20; }
  virtual int many() const { return 10'000; }
};
using MakeTransportFamily = std::function<std::unique_ptr<TransportFamily>()>;

class ConnectionConformance : public ::testing::TestWithParam<MakeTransportFamily> {
 protected:
  ConnectionConformance();
  ~ConnectionConformance() override;

  Deadline soon() const { return clock().in(std::chrono::minutes(5)); }
  virtual const Clock& clock() const { return Clock::steady(); }
  // Makes the transports of ranks 0 and 1, a listener of rank 1, and a connection from 0 to 1.
  void connect_pair(const Clock& clock = Clock::steady());

  const std::unique_ptr<TransportFamily> family_;
  std::unique_ptr<transport::Transport> transport0_;
  std::unique_ptr<transport::Transport> transport1_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<transport::Connection> client_;  // rank 0's, to rank 1
  std::unique_ptr<transport::Connection> server_;  // rank 1's, to rank 0
};

// The same, with transports on a clock that the test moves.
class ConnectionDeadlineConformance : public ConnectionConformance {
 protected:
  ~ConnectionDeadlineConformance() override;
  const Clock& clock() const override { return fake_; }

  FakeClock fake_;
};

// Making connections.
class TransportConformance : public ConnectionConformance {
 protected:
  ~TransportConformance() override;
};

// The names of the three parts. Each is defined beside its tests, so that whoever names a part links it.
std::string connection_tests();
std::string deadline_tests();
std::string transport_tests();

}  // namespace lockstep::testing

// `Family` is a TransportFamily with a default constructor.
#define LOCKSTEP_CONNECTION_CONFORMANCE(Name, Family)                                                \
  LOCKSTEP_CONNECTION_CONFORMANCE_PART(Name, Family, ConnectionConformance, connection_tests);       \
  LOCKSTEP_CONNECTION_CONFORMANCE_PART(Name, Family, ConnectionDeadlineConformance, deadline_tests); \
  LOCKSTEP_CONNECTION_CONFORMANCE_PART(Name, Family, TransportConformance, transport_tests)
#define LOCKSTEP_CONNECTION_CONFORMANCE_PART(Name, Family, Suite, part)                                 \
  INSTANTIATE_TEST_SUITE_P(Name, Suite, ::testing::Values(::lockstep::testing::MakeTransportFamily([] { \
                             return std::make_unique<Family>();                                         \
                           })),                                                                         \
                           [](const auto&) { return ::lockstep::testing::part(); })
