// A transport that goes wrong on purpose, around any other: it delays, cuts, flips a bit, or moves one byte
// at a time. The same seed and the same operations give the same faults.
//
// Faults act on the bytes that users see, above any protection of the wire: a flipped bit arrives, which is
// what tests of a higher layer's own checks need. Damage on the wire itself is testing/fault_proxy.h.
// Callbacks run on a loop of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::faulty {

// How an operation is passed on.
enum class Pieces : bool { kWhole, kOneByte };

// On every connection of the transport; offsets count the bytes that this side sends on it.
struct Faults {
  std::uint64_t seed = 1;
  Duration max_delay = Duration::zero();         // before each piece, from 0 to this
  Pieces pieces = Pieces::kWhole;                // both directions
  std::optional<std::uint64_t> cut_after = {};   // so many bytes are sent, then the connection ends
  std::optional<std::uint64_t> flip_after = {};  // in the byte at this offset one bit is flipped
};

class FaultyTransport final : public Transport {
 public:
  static Result<std::unique_ptr<FaultyTransport>> create(std::unique_ptr<Transport> inner,
                                                         const Faults& faults);
  ~FaultyTransport() override;

  void connect(const Target& target, const Deadline& deadline, Connected done) override;
  Result<std::unique_ptr<Listener>> listen(const base::Endpoint& bind) override;
  const Clock& clock() const override;
  Loop& loop() override;

 private:
  class Impl;
  explicit FaultyTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::transport::faulty
