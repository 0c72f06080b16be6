#include "extension/torch_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
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

// Whether it is a TCPStore whose server has ended, as it does with its rank. torch prints a warning with a
// stack where such a store is asked for something.
bool is_gone(c10::intrusive_ptr<c10d::Store> store, const Deadline& deadline) {
  while (auto* const prefix = dynamic_cast<c10d::PrefixStore*>(store.get()))
    store = prefix->getUnderlyingStore();
  const auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get());
  if (tcp == nullptr) return false;
  const auto addresses = base::resolve({.host = tcp->getHost(), .port = tcp->getPort()}, deadline);
  if (!addresses.ok()) return false;
  return std::none_of(addresses->begin(), addresses->end(), [&](const base::SocketAddress& address) {
    return base::connect_to(address, deadline, base::OnRefused::kFail).ok();
  });
}

}  // namespace

TorchStore::TorchStore(c10::intrusive_ptr<c10d::Store> inner)
    : inner_(std::move(inner)), timeout_(inner_->getTimeout()) {}

// torch says by its exceptions what went wrong: a timeout and a lost connection are told apart by their
// classes.
template <typename Body>
auto TorchStore::guarded(std::string_view what, const Body& body) const {
  using Value = decltype(body());
  using Given = std::conditional_t<std::is_void_v<Value>, Status, Result<Value>>;
  const auto said = [&](const c10::Error& error) {
    return cat("torch's store, ", what, ": ", error.what_without_backtrace());
  };
  try {
    if constexpr (std::is_void_v<Value>) {
      body();
      return Status();
    } else {
      return Given(body());
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
  return guarded(cat("set ", key), [&] { inner_->set(std::string(key), bytes_of(value)); });
}

Result<Buffer> TorchStore::get(std::string_view key, When deadline) {
  const std::string name(key);
  LOCKSTEP_TRY(wait({&name, 1}, deadline));
  return guarded(cat("get ", key), [&] { return buffer_of(inner_->get(name)); });
}

Result<Buffer> TorchStore::compare_set(std::string_view key, ByteView expected, ByteView desired, When) {
  return guarded(cat("compare_set ", key), [&] {
    return buffer_of(inner_->compareSet(std::string(key), bytes_of(expected), bytes_of(desired)));
  });
}

Result<std::int64_t> TorchStore::add(std::string_view key, std::int64_t amount, When) {
  return guarded(cat("add ", key), [&] { return inner_->add(std::string(key), amount); });
}

Result<bool> TorchStore::check(Keys keys, When) {
  return guarded("check", [&] { return inner_->check({keys.begin(), keys.end()}); });
}

Status TorchStore::wait(Keys keys, When deadline) {
  const Deadline end = deadline.value_or(clock().in(timeout()));
  const std::vector<std::string> names(keys.begin(), keys.end());
  if (end.remaining() < kShort) return wait_a_moment(names, end);
  const Status waited = guarded(cat("wait for ", keys_text(keys)), [&] { inner_->wait(names, until(end)); });
  // FileStore says it by an error of no class.
  if (waited.failure() == Failure::kStoreLost && end.expired())
    return Status::timeout(std::string(waited.message()));
  return waited;
}

// torch's TCPStore prints a warning for a wait that was in vain.
Status TorchStore::wait_a_moment(const std::vector<std::string>& names, const Deadline& end) const {
  while (true) {
    const Result<bool> there =
        guarded(cat("wait for ", keys_text(names)), [&] { return inner_->check(names); });
    LOCKSTEP_TRY(there.status());
    if (*there) return {};
    if (end.expired())
      return Status::timeout(cat("torch's store, wait for ", keys_text(names), ": they did not come"));
    std::this_thread::sleep_for(std::min<Duration>(kStorePoll, end.remaining()));
  }
}

// The last thing that a rank does: others may have left before it.
Result<bool> TorchStore::delete_key(std::string_view key, When deadline) {
  if (is_gone(inner_, deadline.value_or(clock().in(timeout())))) {
    return Status::disconnected(cat("torch's store, delete_key ", key, ": its server has ended"),
                                {.failure = Failure::kStoreLost});
  }
  return guarded(cat("delete_key ", key), [&] { return inner_->deleteKey(std::string(key)); });
}

Result<std::int64_t> TorchStore::num_keys(When) {
  return guarded("num_keys", [&] { return inner_->getNumKeys(); });
}

Status TorchStore::append(std::string_view key, ByteView value, When) {
  return guarded(cat("append ", key), [&] { inner_->append(std::string(key), bytes_of(value)); });
}

Result<std::vector<Buffer>> TorchStore::multi_get(Keys keys, When deadline) {
  LOCKSTEP_TRY(wait(keys, deadline));
  return guarded("multi_get", [&] {
    std::vector<Buffer> out;
    if (inner_->hasExtendedApi()) {
      for (const auto& bytes : inner_->multiGet({keys.begin(), keys.end()})) out.push_back(buffer_of(bytes));
    } else {
      for (const std::string& key : keys) out.push_back(buffer_of(inner_->get(key)));
    }
    return out;
  });
}

Status TorchStore::multi_set(Keys keys, std::span<const Buffer> values, When) {
  if (keys.size() != values.size()) {
    return Status::invalid(
        cat("multi_set needs as many values as keys, and has ", values.size(), " for ", keys.size(), "."));
  }
  return guarded("multi_set", [&] {
    std::vector<std::vector<std::uint8_t>> bytes;
    for (const Buffer& value : values) bytes.push_back(bytes_of(value));
    if (inner_->hasExtendedApi()) {
      inner_->multiSet({keys.begin(), keys.end()}, bytes);
    } else {
      for (std::size_t i = 0; i < keys.size(); ++i) inner_->set(keys[i], bytes[i]);
    }
  });
}

Status TorchStore::queue_push(std::string_view queue, ByteView value, When) {
  return guarded(cat("queue_push ", queue), [&] { inner_->queuePush(std::string(queue), bytes_of(value)); });
}

Result<Buffer> TorchStore::queue_pop(std::string_view queue, OnEmpty on_empty, When) {
  return guarded(cat("queue_pop ", queue),
                 [&] { return buffer_of(inner_->queuePop(std::string(queue), on_empty == OnEmpty::kWait)); });
}

Result<std::int64_t> TorchStore::queue_len(std::string_view queue, When) {
  return guarded(cat("queue_len ", queue), [&] { return inner_->queueLen(std::string(queue)); });
}

Result<std::vector<std::string>> TorchStore::list_keys(When) {
  return guarded("list_keys", [&] { return inner_->listKeys(); });
}

Result<std::unique_ptr<store::Store>> TorchStore::clone(When) {
  return guarded("clone", [&]() -> std::unique_ptr<store::Store> {
    return std::make_unique<TorchStore>(inner_->clone());
  });
}

}  // namespace lockstep::python
