#include "lockstep/transport/inproc/inproc_transport.h"

#include "lockstep/testing/connection_conformance.h"

namespace lockstep::testing {
namespace {

class InprocTransports final : public TransportFamily {
 public:
  std::unique_ptr<transport::Transport> make(const transport::Identity& identity,
                                             const Clock& clock) override {
    return transport::inproc::InprocTransport::create(network_, identity, clock).value();
  }
  base::Endpoint bind() const override { return {.host = "inproc", .port = 0}; }

 private:
  transport::inproc::InprocNetwork network_;
};

LOCKSTEP_CONNECTION_CONFORMANCE(Inproc, InprocTransports);

}  // namespace
}  // namespace lockstep::testing
