#include "lockstep/store/hash_store.h"

#include <utility>

#include "lockstep/base/mutex.h"
#include "lockstep/store/key_values.h"
#include "lockstep/store/store_errors.h"

namespace lockstep::store {

struct HashStore::Data {
  Mutex mutex;
  CondVar changed;
  KeyValues state LOCKSTEP_GUARDED_BY(mutex);
  int waiters LOCKSTEP_GUARDED_BY(mutex) = 0;

  // Wakes every waiter: each looks for its own keys again. Changes are rare while someone waits.
  void notify() LOCKSTEP_REQUIRES(mutex) {
    if (waiters > 0) changed.notify_all();
  }

  // False if the deadline came first.
  template <typename Ready>
  bool wait_for(const Deadline& deadline, Ready&& ready) LOCKSTEP_REQUIRES(mutex) {
    if (ready(state)) return true;
    ++waiters;
    bool done = false;
    do {
      const bool in_time = changed.wait_until(mutex, deadline);
      done = ready(state);
      if (!in_time) break;
    } while (!done);
    --waiters;
    return done;
  }

  Status wait_for_keys(std::string_view op, Keys keys, const Deadline& deadline) LOCKSTEP_REQUIRES(mutex) {
    LOCKSTEP_TRY(check_keys(op, keys));
    const base::TimePoint start = deadline.clock().now();
    if (wait_for(deadline, [&](const KeyValues& now) { return now.check(keys); })) return {};
    return wait_timed_out("HashStore", op, state.missing(keys), deadline.clock().now() - start);
  }
};

HashStore::HashStore(const StoreOptions& options) : HashStore(std::make_shared<Data>(), options) {}
HashStore::HashStore(std::shared_ptr<Data> data, const StoreOptions& options)
    : clock_(*options.clock), timeout_(options.timeout), data_(std::move(data)) {}
HashStore::~HashStore() = default;

Status HashStore::set(std::string_view key, ByteView value, When) {
  MutexLock lock(data_->mutex);
  LOCKSTEP_TRY(data_->state.set(key, value));
  data_->notify();
  return {};
}

Result<Buffer> HashStore::get(std::string_view key, When deadline) {
  LOCKSTEP_TRY(check_key(key));
  const Deadline until = deadline.value_or(clock_.in(timeout()));
  const base::TimePoint start = until.clock().now();
  Data& data = *data_;
  MutexLock lock(data.mutex);
  if (!data.wait_for(until, [&](const KeyValues& now) { return now.contains(key); })) {
    return wait_timed_out(description(), "get", {{std::string(key)}}, until.clock().now() - start);
  }
  return copy_of(*data.state.get(key));
}

Result<Buffer> HashStore::compare_set(std::string_view key, ByteView expected, ByteView desired, When) {
  MutexLock lock(data_->mutex);
  LOCKSTEP_ASSIGN(const KeyValues::Compared compared, data_->state.compare_set(key, expected, desired));
  if (compared.changed) data_->notify();
  return copy_of(compared.value);
}

Result<std::int64_t> HashStore::add(std::string_view key, std::int64_t amount, When) {
  MutexLock lock(data_->mutex);
  LOCKSTEP_ASSIGN(const std::int64_t sum, data_->state.add(key, amount));
  data_->notify();
  return sum;
}

Result<bool> HashStore::check(Keys keys, When) {
  LOCKSTEP_TRY(check_keys("check", keys));
  MutexLock lock(data_->mutex);
  return data_->state.check(keys);
}

Status HashStore::wait(Keys keys, When deadline) {
  MutexLock lock(data_->mutex);
  return data_->wait_for_keys("wait", keys, deadline.value_or(clock_.in(timeout())));
}

Result<bool> HashStore::delete_key(std::string_view key, When) {
  LOCKSTEP_TRY(check_key(key));
  MutexLock lock(data_->mutex);
  return data_->state.delete_key(key);
}

Result<std::int64_t> HashStore::num_keys(When) {
  MutexLock lock(data_->mutex);
  return data_->state.num_keys();
}

Status HashStore::append(std::string_view key, ByteView value, When) {
  MutexLock lock(data_->mutex);
  LOCKSTEP_TRY(data_->state.append(key, value));
  data_->notify();
  return {};
}

Result<std::vector<Buffer>> HashStore::multi_get(Keys keys, When deadline) {
  MutexLock lock(data_->mutex);
  LOCKSTEP_TRY(data_->wait_for_keys("multi_get", keys, deadline.value_or(clock_.in(timeout()))));
  LOCKSTEP_TRY(check_answer_size("multi_get", data_->state.answer_size(keys)));
  std::vector<Buffer> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) {
    LOCKSTEP_ASSIGN(Buffer value, copy_of(*data_->state.get(key)));
    values.push_back(std::move(value));
  }
  return values;
}

Status HashStore::multi_set(Keys keys, std::span<const Buffer> values, When) {
  const std::vector<ByteView> views(values.begin(), values.end());
  MutexLock lock(data_->mutex);
  LOCKSTEP_TRY(data_->state.multi_set(keys, views));
  data_->notify();
  return {};
}

Status HashStore::queue_push(std::string_view queue, ByteView value, When) {
  MutexLock lock(data_->mutex);
  LOCKSTEP_TRY(data_->state.queue_push(queue, value));
  data_->notify();
  return {};
}

Result<Buffer> HashStore::queue_pop(std::string_view queue, OnEmpty on_empty, When deadline) {
  LOCKSTEP_TRY(check_key(queue));
  const Deadline until = deadline.value_or(clock_.in(timeout()));
  const base::TimePoint start = until.clock().now();
  Data& data = *data_;
  MutexLock lock(data.mutex);
  std::optional<Buffer> value = data.state.queue_pop(queue);
  if (!value && on_empty == OnEmpty::kFail) return queue_is_empty(description(), queue);
  if (!value) {
    data.wait_for(until, [&](KeyValues& now) {
      value = now.queue_pop(queue);
      return value.has_value();
    });
  }
  if (!value) return pop_timed_out(description(), queue, until.clock().now() - start);
  return std::move(*value);
}

Result<std::int64_t> HashStore::queue_len(std::string_view queue, When) {
  LOCKSTEP_TRY(check_key(queue));
  MutexLock lock(data_->mutex);
  return data_->state.queue_len(queue);
}

Result<std::vector<std::string>> HashStore::list_keys(When) {
  MutexLock lock(data_->mutex);
  std::vector<std::string> keys = data_->state.list_keys();
  LOCKSTEP_TRY(check_answer_size("list_keys", items_size(keys)));
  return keys;
}

Result<std::unique_ptr<Store>> HashStore::clone(When) {
  return std::unique_ptr<Store>(new HashStore(data_, StoreOptions{.timeout = timeout(), .clock = &clock_}));
}

}  // namespace lockstep::store
