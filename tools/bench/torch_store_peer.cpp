// torch's side of `lockstep bench store`: c10d::TCPStore with its libuv server, which is its default and its
// fastest.
#include <dlfcn.h>
#include <netdb.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tools/bench/store_peer.h"

// torch asks for the name of every address it connects to. Where no name server answers that takes seconds,
// which would say nothing about its store: here every address is its own name.
extern "C" int getnameinfo(const sockaddr* address, socklen_t size, char* host, socklen_t host_size,
                           char* service, socklen_t service_size, int flags) {
  static const auto real = reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  return real(address, size, host, host_size, service, service_size, flags | NI_NUMERICHOST);
}

namespace lockstep::bench {
namespace {

class TorchSide {
 public:
  class Client {
   public:
    explicit Client(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}
    void set(const std::string& key, const std::string& value) {
      store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    }
    std::string get(const std::string& key) {
      const std::vector<std::uint8_t> value = store_->get(key);
      return {value.begin(), value.end()};
    }
    std::int64_t add(const std::string& key, std::int64_t amount) { return store_->add(key, amount); }
    bool check(const std::string& key) { return store_->check({key}); }
    void wait(const std::string& key) { store_->wait({key}); }
    void barrier(const std::string& key, int size) { barrier(*store_, key, size); }

   private:
    // torch 2.11 has no barrier in its stores; this is what its init_process_group() does.
    template <typename Store>
    static void barrier(Store& store, const std::string& key, int size) {
      if constexpr (requires { store.barrier(key, size, store.getTimeout()); }) {
        store.barrier(key, size, store.getTimeout());
      } else {
        if (store.add(key, 1) == size) store.set(key + "/all", std::vector<std::uint8_t>{1});
        store.wait({key + "/all"});
      }
    }

    c10::intrusive_ptr<c10d::TCPStore> store_;
  };

  explicit TorchSide(int /*clients*/) : server_(make(0, true)) {
    expect(server_->isLibUvBackend(), "torch's store does not use libuv");
  }
  std::unique_ptr<Client> connect() { return std::make_unique<Client>(make(server_->getPort(), false)); }

  static std::string version() { return TORCH_VERSION; }

 private:
  static c10::intrusive_ptr<c10d::TCPStore> make(std::uint16_t port, bool is_server) {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server;
    options.waitWorkers = false;
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  c10::intrusive_ptr<c10d::TCPStore> server_;
};

}  // namespace
}  // namespace lockstep::bench

int main() {
  try {
    return lockstep::bench::run_store_peer<lockstep::bench::TorchSide>();
  } catch (const std::exception& error) {
    lockstep::bench::wrong_answer(error.what());
  }
}
