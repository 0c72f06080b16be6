// Our side of `lockstep bench store`.
#include <memory>
#include <string>
#include <utility>

#include "lockstep/store/tcp_store.h"
#include "tools/bench/store_peer.h"

namespace lockstep::bench {
namespace {

using namespace std::chrono_literals;

template <typename T>
T checked(Result<T> result) {
  if (!result.ok()) wrong_answer(result.status().text());
  return std::move(result).value();
}
void checked(const Status& status) {
  if (!status.ok()) wrong_answer(status.text());
}

class LockstepSide {
 public:
  class Client {
   public:
    explicit Client(std::unique_ptr<store::TcpStore> store) : store_(std::move(store)) {}
    void set(const std::string& key, const std::string& value) { checked(store_->set(key, bytes_of(value))); }
    std::string get(const std::string& key) { return std::string(text_of(checked(store_->get(key)))); }
    std::int64_t add(const std::string& key, std::int64_t amount) {
      return checked(store_->add(key, amount));
    }
    bool check(const std::string& key) { return checked(store_->check(std::span(&key, 1))); }
    void wait(const std::string& key) { checked(store_->wait(std::span(&key, 1))); }
    void barrier(const std::string& key, int size) { checked(store_->barrier(key, WorldSize(size))); }

   private:
    std::unique_ptr<store::TcpStore> store_;
  };

  explicit LockstepSide(int clients) {
    store::TcpServerOptions options;
    options.tenants.push_back({.job_id = "bench", .secret = secret_, .world = WorldSize(clients)});
    server_ = checked(store::TcpStoreServer::start(std::move(options)));
  }
  std::unique_ptr<Client> connect() {
    const store::TcpStoreOptions options{
        .endpoint = server_->endpoint(), .job_id = "bench", .secret = secret_};
    return std::make_unique<Client>(checked(store::TcpStore::connect(options, Clock::steady().in(60s))));
  }

  static std::string version() { return LOCKSTEP_VERSION; }

 private:
  const Secret secret_ = Secret::generate();
  std::unique_ptr<store::TcpStoreServer> server_;
};

}  // namespace
}  // namespace lockstep::bench

int main() { return lockstep::bench::run_store_peer<lockstep::bench::LockstepSide>(); }
