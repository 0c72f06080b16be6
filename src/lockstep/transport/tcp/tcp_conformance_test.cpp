#include "lockstep/testing/connection_conformance.h"
#include "lockstep/transport/tcp/tcp_transport.h"

namespace lockstep::testing {
namespace {

using transport::Protection;
using transport::tcp::TcpTransport;

template <Protection kProtection>
class TcpTransports : public TransportFamily {
 public:
  std::unique_ptr<transport::Transport> make(const transport::Identity& identity,
                                             const Clock& clock) override {
    return TcpTransport::create({.identity = identity, .protection = kProtection}, clock).value();
  }
  base::Endpoint bind() const override { return {.host = "127.0.0.1", .port = 0}; }
};

class SealedTcp final : public TcpTransports<Protection::kSealed> {};
class CheckedTcp final : public TcpTransports<Protection::kIntegrity> {};
class TcpOverIpv6 final : public TcpTransports<Protection::kSealed> {
 public:
  base::Endpoint bind() const override { return {.host = "::1", .port = 0}; }
};

LOCKSTEP_CONNECTION_CONFORMANCE(Sealed, SealedTcp);
LOCKSTEP_CONNECTION_CONFORMANCE(Checked, CheckedTcp);
LOCKSTEP_CONNECTION_CONFORMANCE(Ipv6, TcpOverIpv6);

}  // namespace
}  // namespace lockstep::testing
