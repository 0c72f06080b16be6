#include "extension/lockstep_store.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <utility>

#include "extension/errors.h"
#include "extension/interrupts.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"

namespace lockstep::python {
namespace {

// A wait that is longer is one that Ctrl-C can end.
constexpr Duration kStep = std::chrono::milliseconds(50);

ByteView view_of(const std::vector<std::uint8_t>& bytes) { return std::as_bytes(std::span(bytes)); }

std::vector<std::uint8_t> bytes_of(const Buffer& buffer) {
  std::vector<std::uint8_t> out(buffer.size());
  if (!out.empty()) std::memcpy(out.data(), buffer.data(), out.size());
  return out;
}

// torch's stores report every failure, a timeout too, as DistStoreError.
void or_throw(const Status& status) {
  if (status.ok()) return;
  if (status.code() == Code::kInvalid || status.failure() == Failure::kQueueEmpty) throw_torch(status);
  C10_THROW_ERROR(DistStoreError, std::string(status.message()));
}

template <typename T>
T or_throw(Result<T> result) {
  or_throw(result.status());
  return std::move(result).value();
}

Result<Rendezvous> meet(const LockstepStoreOptions& options) {
  LOCKSTEP_ASSIGN(const Environment environment, Environment::read());
  base::configure_logging(environment.log);
  RendezvousOptions meeting{.url = options.url, .timeout = options.timeout};
  if (options.rank) meeting.rank = Rank{*options.rank};
  if (options.world_size) meeting.world_size = WorldSize{*options.world_size};
  return store::rendezvous(meeting, environment);
}

}  // namespace

LockstepStore::LockstepStore(std::shared_ptr<store::Store> inner, std::chrono::milliseconds timeout)
    : c10d::Store(timeout), inner_(std::move(inner)) {}

LockstepStore::~LockstepStore() = default;

c10::intrusive_ptr<LockstepStore> LockstepStore::join(const LockstepStoreOptions& options) {
  auto met = run_aside([options] { return meet(options); });
  if (!met.ok()) throw_not_joined(met.status());
  auto made = c10::make_intrusive<LockstepStore>(met->store, options.timeout);
  made->rank_ = met->rank.value;
  made->world_size_ = met->world_size.value;
  const MutexLock lock(made->mutex_);
  made->rendezvous_.emplace(std::move(*met));
  return made;
}

std::optional<Rendezvous> LockstepStore::take_rendezvous() {
  const MutexLock lock(mutex_);
  return std::exchange(rendezvous_, std::nullopt);
}

template <typename Body>
auto LockstepStore::waited_for(std::chrono::milliseconds timeout, const Body& body) const {
  const Deadline end = until(timeout);
  // Most are there, and need no other thread.
  auto soon = body(end.at_most(kStep));
  if (soon.status().code() != Code::kTimeout || end.expired()) return or_throw(std::move(soon));
  return or_throw(run_aside([body, end] { return body(end); }));
}

Deadline LockstepStore::until(std::chrono::milliseconds timeout) const { return inner_->clock().in(timeout); }

c10::intrusive_ptr<c10d::Store> LockstepStore::clone() {
  return c10::make_intrusive<LockstepStore>(or_throw(inner_->clone(until())), getTimeout());
}

void LockstepStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  or_throw(inner_->set(key, view_of(value), until()));
}

std::vector<std::uint8_t> LockstepStore::compareSet(const std::string& key,
                                                    const std::vector<std::uint8_t>& expected,
                                                    const std::vector<std::uint8_t>& desired) {
  return bytes_of(or_throw(inner_->compare_set(key, view_of(expected), view_of(desired), until())));
}

std::vector<std::uint8_t> LockstepStore::get(const std::string& key) {
  return bytes_of(waited_for(getTimeout(), [inner = inner_, key](When end) { return inner->get(key, end); }));
}

std::int64_t LockstepStore::add(const std::string& key, std::int64_t value) {
  return or_throw(inner_->add(key, value, until()));
}

bool LockstepStore::deleteKey(const std::string& key) { return or_throw(inner_->delete_key(key, until())); }

bool LockstepStore::check(const std::vector<std::string>& keys) {
  return or_throw(inner_->check(keys, until()));
}

std::int64_t LockstepStore::getNumKeys() { return or_throw(inner_->num_keys(until())); }

void LockstepStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void LockstepStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  waited_for(timeout, [inner = inner_, keys](When end) -> Result<bool> {
    LOCKSTEP_TRY(inner->wait(keys, end));
    return true;
  });
}

void LockstepStore::append(const std::string& key, const std::vector<std::uint8_t>& value) {
  or_throw(inner_->append(key, view_of(value), until()));
}

std::vector<std::vector<std::uint8_t>> LockstepStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<std::uint8_t>> out;
  const auto got = [inner = inner_, keys](When end) { return inner->multi_get(keys, end); };
  for (const Buffer& value : waited_for(getTimeout(), got)) out.push_back(bytes_of(value));
  return out;
}

void LockstepStore::multiSet(const std::vector<std::string>& keys,
                             const std::vector<std::vector<std::uint8_t>>& values) {
  std::vector<Buffer> buffers;
  for (const auto& value : values) {
    const ByteView bytes = view_of(value);
    buffers.emplace_back(bytes.begin(), bytes.end());
  }
  or_throw(inner_->multi_set(keys, buffers, until()));
}

void LockstepStore::queuePush(const std::string& key, const std::vector<std::uint8_t>& value) {
  or_throw(inner_->queue_push(key, view_of(value), until()));
}

std::vector<std::uint8_t> LockstepStore::queuePop(const std::string& key, bool block) {
  if (!block) return bytes_of(or_throw(inner_->queue_pop(key, store::Store::OnEmpty::kFail, until())));
  // In steps, on this thread: another would take a value that nobody waits for any more.
  const Deadline end = until();
  while (true) {
    auto popped = inner_->queue_pop(key, store::Store::OnEmpty::kWait, end.at_most(kStep));
    if (popped.status().code() != Code::kTimeout || end.expired())
      return bytes_of(or_throw(std::move(popped)));
    check_signals();
  }
}

std::int64_t LockstepStore::queueLen(const std::string& key) {
  return or_throw(inner_->queue_len(key, until()));
}

std::vector<std::string> LockstepStore::listKeys() { return or_throw(inner_->list_keys(until())); }

}  // namespace lockstep::python
