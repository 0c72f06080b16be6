#include "extension/torch_store.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/net.h"
#include "lockstep/base/text.h"

namespace lockstep::python {
namespace {

using std::chrono::milliseconds;

// A wait that is shorter asks again and again.
constexpr Duration kShort = std::chrono::seconds(1);
constexpr Duration kStorePoll = milliseconds(5);

std::vector<std::uint8_t> bytes_of(ByteView value) {
  const auto* const data = reinterpret_cast<const std::uint8_t*>(value.data());
  return {data, data + value.size()};
}

Buffer buffer_of(const std::vector<std::uint8_t>& bytes) {
  Buffer out(bytes.size());
  if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// At least 1, because 0 is no timeout to torch.
milliseconds until(const Deadline& deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline.remaining()), milliseconds(1));
}

std::string keys_text(store::Keys keys) {
  std::vector<std::string> some(keys.begin(), keys.begin() + std::min<std::ptrdiff_t>(4, std::ssize(keys)));
  return cat(base::join(some), keys.size() > some.size() ? ", ..." : "");
}

// What init_process_group() puts before the keys of a store that its rendezvous has made, and before no
// other's.
constexpr std::string_view kOfRendezvous = "default_pg";

// The prefix is for subclasses alone.
struct Prefix : c10d::PrefixStore {
  static const std::string& of(const c10d::PrefixStore& store) { return store.*(&Prefix::prefix_); }
};

template <typename Kind>
const Kind* behind_prefixes(c10::intrusive_ptr<c10d::Store> store) {
  while (auto* const prefix = dynamic_cast<c10d::PrefixStore*>(store.get()))
    store = prefix->getUnderlyingStore();
  return dynamic_cast<const Kind*>(store.get());  // which the outermost keeps
}

// Its file is there from the store's first moment on.
bool has_no_file(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto* const file = behind_prefixes<c10d::FileStore>(store);
  return file != nullptr && ::access(file->getPath().c_str(), F_OK) != 0 && errno == ENOENT;
}

std::vector<base::SocketAddress> addresses_of(const c10d::TCPStore& store, const Deadline& deadline) {
  auto addresses = base::resolve({.host = store.getHost(), .port = store.getPort()}, deadline);
  return addresses.ok() ? *std::move(addresses) : std::vector<base::SocketAddress>();
}

Status lost_because(std::string_view what, const char* why) {
  return Status::disconnected(cat("torch's store, ", what, ": ", why), {.failure = Failure::kStoreLost});
}

// A connection to it; nothing if nobody listens there.
UniqueFd connected(const std::vector<base::SocketAddress>& addresses, const Deadline& deadline) {
  for (const base::SocketAddress& address : addresses) {
    auto made = base::connect_to(address, deadline, base::OnRefused::kFail);
    if (made.ok()) return *std::move(made);
  }
  return {};
}

// Whether it is a TCPStore whose server has ended, as it does with its rank.
bool has_no_server(const c10::intrusive_ptr<c10d::Store>& store, const Deadline& deadline) {
  const auto* const tcp = behind_prefixes<c10d::TCPStore>(store);
  if (tcp == nullptr) return false;
  const auto addresses = addresses_of(*tcp, deadline);
  return !addresses.empty() && !connected(addresses, deadline);
}

}  // namespace

TorchStore::TorchStore(c10::intrusive_ptr<c10d::Store> inner, End end)
    : end_(end), inner_(std::move(inner)), timeout_(inner_->getTimeout()) {}

bool TorchStore::is_of_rendezvous(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* outer = dynamic_cast<c10d::PrefixStore*>(store.get());
  while (outer != nullptr) {
    const auto inner = outer->getUnderlyingStore();
    if (dynamic_cast<c10d::TCPStore*>(inner.get()) != nullptr) return Prefix::of(*outer) == kOfRendezvous;
    outer = dynamic_cast<c10d::PrefixStore*>(inner.get());
  }
  return false;
}

c10::intrusive_ptr<c10d::Store> TorchStore::inner() const {
  const MutexLock lock(mutex_);
  return inner_;
}

void TorchStore::leave() {
  is_leaving_ = true;
  if (end_ != End::kWithThisRank) return;
  c10::intrusive_ptr<c10d::Store> held;  // let go of with no lock held
  const MutexLock lock(mutex_);
  held = std::exchange(inner_, nullptr);
}

void TorchStore::wait_for_end(const Deadline& deadline) const {
  const auto store = inner();
  const auto* const tcp = end_ == End::kWithRank0 && store ? behind_prefixes<c10d::TCPStore>(store) : nullptr;
  if (tcp == nullptr) return;
  const auto addresses = addresses_of(*tcp, deadline);
  while (!deadline.expired()) {
    const UniqueFd connection = connected(addresses, deadline);
    if (!connection) return;
    std::byte none = {};
    const Status ended = base::recv_all(connection.get(), {&none, 1}, deadline, "torch's store");
    if (ended.code() == Code::kTimeout) return;
  }
}

Status TorchStore::lost(std::string_view what) const {
  const auto store = inner();
  const char* why = nullptr;
  if (!store) {
    why = "this rank, which serves it, has left";
  } else if (has_no_file(store)) {
    why = "its file is gone";
  } else if (is_leaving_ && has_no_server(store, clock().in(kShort))) {
    why = "its server has ended";
  }
  return why == nullptr ? Status() : lost_because(what, why);
}

Status TorchStore::ends_soon(std::string_view what) const {
  const bool ends = is_leaving_ && end_ == End::kWithRank0;
  return ends ? lost_because(what, "it ends with rank 0") : Status();
}

// torch says by its exceptions what went wrong: a timeout and a lost connection are told apart by their
// classes.
template <typename Body>
auto TorchStore::guarded(std::string_view what, const Body& body) const {
  using Value = decltype(body(std::declval<c10d::Store&>()));
  using Given = std::conditional_t<std::is_void_v<Value>, Status, Result<Value>>;
  const auto said = [&](const c10::Error& error) {
    return cat("torch's store, ", what, ": ", error.what_without_backtrace());
  };
  if (const Status gone = lost(what); !gone.ok()) return Given(gone);
  const auto store = inner();
  if (!store) return Given(lost(what));
  try {
    if constexpr (std::is_void_v<Value>) {
      body(*store);
      return Status();
    } else {
      return Given(body(*store));
    }
  } catch (const c10::DistQueueEmptyError& error) {
    return Given(Status::timeout(said(error), {.failure = Failure::kQueueEmpty}));
  } catch (const c10::DistStoreError& error) {
    return Given(Status::timeout(said(error)));
  } catch (const c10::NotImplementedError& error) {
    return Given(Status::unsupported(said(error)));
  } catch (const c10::Error& error) {
    return Given(Status::disconnected(said(error), {.failure = Failure::kStoreLost}));
  } catch (const std::exception& error) {
    return Given(Status::disconnected(cat("torch's store, ", what, ": ", error.what()),
                                      {.failure = Failure::kStoreLost}));
  }
}

Status TorchStore::set(std::string_view key, ByteView value, When) {
  return guarded(cat("set ", key), [&](c10d::Store& store) { store.set(std::string(key), bytes_of(value)); });
}

Result<Buffer> TorchStore::get(std::string_view key, When deadline) {
  const std::string name(key);
  LOCKSTEP_TRY(wait({&name, 1}, deadline));
  return guarded(cat("get ", key), [&](c10d::Store& store) { return buffer_of(store.get(name)); });
}

Result<Buffer> TorchStore::compare_set(std::string_view key, ByteView expected, ByteView desired, When) {
  LOCKSTEP_TRY(ends_soon("compare_set"));
  return guarded(cat("compare_set ", key), [&](c10d::Store& store) {
    return buffer_of(store.compareSet(std::string(key), bytes_of(expected), bytes_of(desired)));
  });
}

Result<std::int64_t> TorchStore::add(std::string_view key, std::int64_t amount, When) {
  LOCKSTEP_TRY(ends_soon("add"));
  return guarded(cat("add ", key), [&](c10d::Store& store) { return store.add(std::string(key), amount); });
}

Result<bool> TorchStore::check(Keys keys, When) {
  return guarded("check", [&](c10d::Store& store) { return store.check({keys.begin(), keys.end()}); });
}

Status TorchStore::wait(Keys keys, When deadline) {
  const Deadline end = deadline.value_or(clock().in(timeout()));
  const std::vector<std::string> names(keys.begin(), keys.end());
  if (is_leaving_) return lost_because(cat("wait for ", keys_text(keys)), "this rank has left");
  if (end.remaining() < kShort) return wait_a_moment(names, end);
  const Status waited =
      guarded(cat("wait for ", keys_text(keys)), [&](c10d::Store& store) { store.wait(names, until(end)); });
  // FileStore says it by an error of no class.
  if (waited.failure() == Failure::kStoreLost && end.expired())
    return Status::timeout(std::string(waited.message()));
  return waited;
}

// torch's TCPStore prints a warning for a wait that was in vain.
Status TorchStore::wait_a_moment(const std::vector<std::string>& names, const Deadline& end) const {
  while (true) {
    const Result<bool> there =
        guarded(cat("wait for ", keys_text(names)), [&](c10d::Store& store) { return store.check(names); });
    LOCKSTEP_TRY(there.status());
    if (*there) return {};
    if (end.expired())
      return Status::timeout(cat("torch's store, wait for ", keys_text(names), ": they did not come"));
    std::this_thread::sleep_for(std::min<Duration>(kStorePoll, end.remaining()));
  }
}

Result<bool> TorchStore::delete_key(std::string_view key, When) {
  LOCKSTEP_TRY(ends_soon("delete_key"));
  return guarded(cat("delete_key ", key),
                 [&](c10d::Store& store) { return store.deleteKey(std::string(key)); });
}

Result<std::int64_t> TorchStore::num_keys(When) {
  return guarded("num_keys", [&](c10d::Store& store) { return store.getNumKeys(); });
}

Status TorchStore::append(std::string_view key, ByteView value, When) {
  return guarded(cat("append ", key),
                 [&](c10d::Store& store) { store.append(std::string(key), bytes_of(value)); });
}

Result<std::vector<Buffer>> TorchStore::multi_get(Keys keys, When deadline) {
  LOCKSTEP_TRY(wait(keys, deadline));
  return guarded("multi_get", [&](c10d::Store& store) {
    std::vector<Buffer> out;
    if (store.hasExtendedApi()) {
      for (const auto& bytes : store.multiGet({keys.begin(), keys.end()})) out.push_back(buffer_of(bytes));
    } else {
      for (const std::string& key : keys) out.push_back(buffer_of(store.get(key)));
    }
    return out;
  });
}

Status TorchStore::multi_set(Keys keys, std::span<const Buffer> values, When) {
  if (keys.size() != values.size()) {
    return Status::invalid(
        cat("multi_set needs as many values as keys, and has ", values.size(), " for ", keys.size(), "."));
  }
  return guarded("multi_set", [&](c10d::Store& store) {
    std::vector<std::vector<std::uint8_t>> bytes;
    for (const Buffer& value : values) bytes.push_back(bytes_of(value));
    if (store.hasExtendedApi()) {
      store.multiSet({keys.begin(), keys.end()}, bytes);
    } else {
      for (std::size_t i = 0; i < keys.size(); ++i) store.set(keys[i], bytes[i]);
    }
  });
}

Status TorchStore::queue_push(std::string_view queue, ByteView value, When) {
  return guarded(cat("queue_push ", queue),
                 [&](c10d::Store& store) { store.queuePush(std::string(queue), bytes_of(value)); });
}

Result<Buffer> TorchStore::queue_pop(std::string_view queue, OnEmpty on_empty, When deadline) {
  const Deadline end = deadline.value_or(clock().in(timeout()));
  while (true) {
    auto popped = guarded(cat("queue_pop ", queue), [&](c10d::Store& store) {
      return buffer_of(store.queuePop(std::string(queue), false));
    });
    const bool is_empty = popped.status().failure() == Failure::kQueueEmpty;
    if (!is_empty || on_empty == OnEmpty::kFail || end.expired()) return popped;
    std::this_thread::sleep_for(std::min<Duration>(kStorePoll, end.remaining()));
  }
}

Result<std::int64_t> TorchStore::queue_len(std::string_view queue, When) {
  return guarded(cat("queue_len ", queue),
                 [&](c10d::Store& store) { return store.queueLen(std::string(queue)); });
}

Result<std::vector<std::string>> TorchStore::list_keys(When) {
  return guarded("list_keys", [&](c10d::Store& store) { return store.listKeys(); });
}

Result<std::unique_ptr<store::Store>> TorchStore::clone(When) {
  return guarded("clone", [&](c10d::Store& store) -> std::unique_ptr<store::Store> {
    return std::make_unique<TorchStore>(store.clone());
  });
}

}  // namespace lockstep::python
