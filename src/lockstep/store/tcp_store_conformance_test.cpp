// The conformance suites on TcpStore over AF_UNIX and over TCP, and on PrefixStore over it.
#include <memory>
#include <utility>

#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/testing/store_conformance.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using store::LocalSocket;

template <LocalSocket local>
class TcpStores : public StoreFamily {
 public:
  explicit TcpStores(const StoreOptions& options) : options_(options) {
    store::TenantOptions tenant{.job_id = "conformance", .secret = secret_};
    tenant.max_connections = 600;
    store::TcpServerOptions server;
    server.tenants.push_back(tenant);
    server_ = std::move(store::TcpStoreServer::start(std::move(server), *options.clock)).value();
  }
  std::unique_ptr<Store> open() override {
    const store::TcpStoreOptions client{.endpoint = server_->endpoint(),
                                        .job_id = "conformance",
                                        .secret = secret_,
                                        .timeout = options_.timeout,
                                        .local_socket = local};
    auto opened = std::move(store::TcpStore::connect(client, options_.clock->in(60s))).value();
    EXPECT_EQ(opened->is_local(), local == LocalSocket::kOn);
    return opened;
  }

 private:
  const StoreOptions options_;
  const Secret secret_ = Secret::generate();
  std::unique_ptr<store::TcpStoreServer> server_;
};

using LocalTcpStores = TcpStores<LocalSocket::kOn>;
LOCKSTEP_STORE_CONFORMANCE(LocalTcpStore, LocalTcpStores);

using PlainTcpStores = TcpStores<LocalSocket::kOff>;
LOCKSTEP_STORE_CONFORMANCE(TcpStore, PlainTcpStores);

class PrefixedTcpStores final : public StoreFamily {
 public:
  explicit PrefixedTcpStores(const StoreOptions& options) : inner_(options) {}
  std::unique_ptr<Store> open() override {
    return std::make_unique<store::PrefixStore>("prefix", inner_.open());
  }

 private:
  LocalTcpStores inner_;
};
LOCKSTEP_STORE_CONFORMANCE(PrefixOverTcpStore, PrefixedTcpStores);

}  // namespace
}  // namespace lockstep::testing
