// Connections between ranks that are threads of one process: no socket, no system call but to wake a thread.
//
// Each rank has an InprocTransport of its own on one InprocNetwork. Endpoints read "inproc:1". Job, epoch and
// secret are compared as over TCP, so that a mix-up is refused here too.
#pragma once

#include <memory>

#include "lockstep/base/clock.h"
#include "lockstep/transport/transport.h"

namespace lockstep::transport::inproc {

// Where listeners are found. Thread safety: any thread. Outlives its transports.
class InprocNetwork {
 public:
  InprocNetwork();
  ~InprocNetwork();
  InprocNetwork(const InprocNetwork&) = delete;
  InprocNetwork& operator=(const InprocNetwork&) = delete;

 private:
  friend class InprocTransport;
  class Doors;
  // Shared with listeners, which take themselves off.
  std::shared_ptr<Doors> doors_;
};

class InprocTransport final : public Transport {
 public:
  static Result<std::unique_ptr<InprocTransport>> create(InprocNetwork& network, Identity identity,
                                                         const Clock& clock = Clock::steady());
  ~InprocTransport() override;

  void connect(const Target& target, const Deadline& deadline, Connected done) override;
  Result<std::unique_ptr<Listener>> listen(const base::Endpoint& bind) override;
  const Clock& clock() const override;
  Loop& loop() override;

  // The host of every endpoint here.
  static constexpr const char* kHost = "inproc";

 private:
  class Impl;
  explicit InprocTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::transport::inproc
