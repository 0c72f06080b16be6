#include "lockstep/store/file_store.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/store/store_errors.h"

namespace lockstep::store {

using namespace std::chrono_literals;

namespace {

// What `body` answers, or the want of memory as an error.
template <typename Body, typename... Args>
auto with_memory(std::string_view op, Body&& body, Args&... args) -> std::invoke_result_t<Body, Args&...> {
  try {
    return body(args...);
  } catch (const std::bad_alloc&) {
    return out_of_memory(op);
  }
}

Failure failure_of(const Status& status) { return status.failure(); }
template <typename T>
Failure failure_of(const Result<T>& result) {
  return result.status().failure();
}

}  // namespace

FileStore::FileStore(LogFile file, const StoreOptions& options)
    : path_(file.path()), clock_(*options.clock), timeout_(options.timeout), file_(std::move(file)) {}

Result<std::unique_ptr<FileStore>> FileStore::open(const std::string& path, const StoreOptions& options) {
  if (path.empty()) return Status::invalid("FileStore: the path is empty");
  // The file itself, whatever the working folder becomes, and not a link to it, which a compaction would
  // replace.
  std::error_code error;
  std::filesystem::path file = std::filesystem::absolute(path, error);
  if (!error) file = std::filesystem::weakly_canonical(file, error);
  if (error) file = path;  // opening it will say what is wrong
  std::unique_ptr<FileStore> store(new FileStore(LogFile(file.string()), options));
  // Makes the file, or finds out now what is wrong with it.
  LOCKSTEP_TRY(store->read(store->start("open", {}), [](const KeyValues&) { return Status(); }));
  return store;
}

FileStore::Call FileStore::start(std::string_view op, When deadline) const {
  const Deadline until = deadline.value_or(clock_.in(timeout()));
  return {.op = op, .until = until, .start = until.clock().now()};
}

Status FileStore::failed(const Status& status) {
  Status named = status.with_prefix(cat(description(), ": "));
  if (named.failure() == Failure::kStoreLost) lost_ = named;
  return named;
}

Status FileStore::enter(const Call& call, LockKind kind) {
  // Short, because who holds the lock does so for some microseconds; growing, because it may write megabytes.
  Duration pause = 20us;
  for (;;) {
    LOCKSTEP_TRY(lost_);
    const Result<LogFile::Begun> begun = file_.begin(kind);
    if (!begun.ok()) return failed(begun.status());
    if (*begun == LogFile::Begun::kYes) return {};
    if (call.until.expired()) {
      const std::string_view why = *begun == LogFile::Begun::kLocked
                                       ? "another process keeps the file locked, perhaps a stopped one"
                                       : "the file was replaced by a compacted one, but the path does not "
                                         "lead there; is it a hard link?";
      return Status::timeout(
          cat(description(), ": ", call.op, " waited ", call.waited(), " for its turn: ", why),
          {.op = std::string(call.op)});
    }
    changed_.wait_until(mutex_, call.until.at_most(pause));
    pause = std::min<Duration>(2 * pause, 1ms);
  }
}

template <typename Body>
auto FileStore::read(const Call& call, Body&& body) -> std::invoke_result_t<Body, const KeyValues&> {
  MutexLock lock(mutex_);
  LOCKSTEP_TRY(enter(call, LockKind::kShared));
  auto answer = with_memory(call.op, body, std::as_const(file_).state());
  file_.end();
  return answer;
}

template <typename Body>
auto FileStore::change(const Call& call, Body&& body) -> std::invoke_result_t<Body, KeyValues&, LogRecord&> {
  MutexLock lock(mutex_);
  LOCKSTEP_TRY(enter(call, LockKind::kExclusive));
  LogRecord record;
  auto answer = with_memory(call.op, body, file_.state(), record);
  Status status;
  if (failure_of(answer) == Failure::kNoMemory) {
    file_.discard();  // the state may have changed before its record was made
  } else if (!record.entries.empty()) {
    status = file_.commit(record);
  }
  file_.end();
  if (!status.ok()) return failed(status);
  changed_.notify_all();
  return answer;
}

template <typename T, typename Look>
Result<std::optional<T>> FileStore::poll(const Call& call, Look&& look) {
  MutexLock lock(mutex_);
  for (;;) {
    // Asked before the look, so that what came before the deadline is found.
    const bool last = call.until.expired();
    LOCKSTEP_TRY(enter(call, LockKind::kShared));
    Result<std::optional<T>> found = with_memory(call.op, look, std::as_const(file_).state());
    file_.end();
    if (!found.ok() || found->has_value() || last) return found;
    // So that a wait is at most an eighth longer than it must be, and a long one costs little.
    const Duration pause = std::clamp<Duration>(call.waited() / 8, 100us, 50ms);
    changed_.wait_until(mutex_, call.until.at_most(pause));
  }
}

Status FileStore::set(std::string_view key, ByteView value, When deadline) {
  return change(start("set", deadline), [&](KeyValues& state, LogRecord& record) {
    Status status = state.set(key, value);
    if (status.ok()) record = {LogOp::kSet, {{key, value}}};
    return status;
  });
}

Result<Buffer> FileStore::get(std::string_view key, When deadline) {
  const std::vector<std::string> keys = {std::string(key)};
  LOCKSTEP_ASSIGN(std::vector<Buffer> values, get_all("get", keys, deadline));
  return std::move(values.front());
}

Result<Buffer> FileStore::compare_set(std::string_view key, ByteView expected, ByteView desired,
                                      When deadline) {
  return change(start("compare_set", deadline), [&](KeyValues& state, LogRecord& record) -> Result<Buffer> {
    LOCKSTEP_ASSIGN(const KeyValues::Compared compared, state.compare_set(key, expected, desired));
    if (compared.changed) record = {LogOp::kSet, {{key, desired}}};
    return copy_of(compared.value);
  });
}

Result<std::int64_t> FileStore::add(std::string_view key, std::int64_t amount, When deadline) {
  return change(start("add", deadline), [&](KeyValues& state, LogRecord& record) {
    Result<std::int64_t> sum = state.add(key, amount);
    if (sum.ok()) record = {LogOp::kSet, {{key, *state.get(key)}}};
    return sum;
  });
}

Result<bool> FileStore::check(Keys keys, When deadline) {
  LOCKSTEP_TRY(check_keys("check", keys));
  return read(start("check", deadline),
              [&](const KeyValues& state) { return Result<bool>(state.check(keys)); });
}

Status FileStore::wait(Keys keys, When deadline) {
  LOCKSTEP_TRY(check_keys("wait", keys));
  const Call call = start("wait", deadline);
  std::vector<std::string> missing;
  LOCKSTEP_ASSIGN(const std::optional<bool> found,
                  poll<bool>(call, [&](const KeyValues& state) -> Result<std::optional<bool>> {
                    missing = state.missing(keys);
                    return missing.empty() ? std::optional(true) : std::nullopt;
                  }));
  return found ? Status() : wait_timed_out(description(), call.op, missing, call.waited());
}

Result<bool> FileStore::delete_key(std::string_view key, When deadline) {
  LOCKSTEP_TRY(check_key(key));
  return change(start("delete_key", deadline), [&](KeyValues& state, LogRecord& record) {
    const bool deleted = state.delete_key(key);
    if (deleted) record = {LogOp::kDelete, {{key, {}}}};
    return Result<bool>(deleted);
  });
}

Result<std::int64_t> FileStore::num_keys(When deadline) {
  return read(start("num_keys", deadline),
              [](const KeyValues& state) { return Result<std::int64_t>(state.num_keys()); });
}

Status FileStore::append(std::string_view key, ByteView value, When deadline) {
  return change(start("append", deadline), [&](KeyValues& state, LogRecord& record) {
    Status status = state.append(key, value);
    if (status.ok()) record = {LogOp::kAppend, {{key, value}}};
    return status;
  });
}

Result<std::vector<Buffer>> FileStore::multi_get(Keys keys, When deadline) {
  return get_all("multi_get", keys, deadline);
}

Result<std::vector<Buffer>> FileStore::get_all(std::string_view op, Keys keys, When deadline) {
  LOCKSTEP_TRY(check_keys(op, keys));
  using Values = std::vector<Buffer>;
  const Call call = start(op, deadline);
  std::vector<std::string> missing;
  LOCKSTEP_ASSIGN(std::optional<Values> values,
                  poll<Values>(call, [&](const KeyValues& state) -> Result<std::optional<Values>> {
                    missing = state.missing(keys);
                    if (!missing.empty()) return std::optional<Values>();
                    LOCKSTEP_TRY(check_answer_size(op, state.answer_size(keys)));
                    Values found;
                    for (const std::string& key : keys) {
                      LOCKSTEP_ASSIGN(Buffer value, copy_of(*state.get(key)));
                      found.push_back(std::move(value));
                    }
                    return std::optional(std::move(found));
                  }));
  if (!values) return wait_timed_out(description(), op, missing, call.waited());
  return std::move(*values);
}

Status FileStore::multi_set(Keys keys, std::span<const Buffer> values, When deadline) {
  const std::vector<ByteView> views(values.begin(), values.end());
  return change(start("multi_set", deadline), [&](KeyValues& state, LogRecord& record) {
    Status status = state.multi_set(keys, views);
    for (std::size_t i = 0; status.ok() && i < keys.size(); ++i)
      record.entries.push_back({keys[i], views[i]});
    return status;
  });
}

Status FileStore::queue_push(std::string_view queue, ByteView value, When deadline) {
  return change(start("queue_push", deadline), [&](KeyValues& state, LogRecord& record) {
    Status status = state.queue_push(queue, value);
    if (status.ok()) record = {LogOp::kPush, {{queue, value}}};
    return status;
  });
}

Result<Buffer> FileStore::queue_pop(std::string_view queue, OnEmpty on_empty, When deadline) {
  LOCKSTEP_TRY(check_key(queue));
  const Call call = start("queue_pop", deadline);
  for (;;) {
    std::optional<Buffer> value;
    LOCKSTEP_TRY(change(call, [&](KeyValues& state, LogRecord& record) {
      value = state.queue_pop(queue);
      if (value) record = {LogOp::kPop, {{queue, {}}}};
      return Status();
    }));
    if (value) return std::move(*value);
    if (on_empty == OnEmpty::kFail) return queue_is_empty(description(), queue);
    // Waits with a lock for reading, which many may hold. Another may be faster then.
    LOCKSTEP_ASSIGN(const std::optional<bool> filled,
                    poll<bool>(call, [&](const KeyValues& state) -> Result<std::optional<bool>> {
                      return state.queue_len(queue) > 0 ? std::optional(true) : std::nullopt;
                    }));
    if (!filled) return pop_timed_out(description(), queue, call.waited());
  }
}

Result<std::int64_t> FileStore::queue_len(std::string_view queue, When deadline) {
  LOCKSTEP_TRY(check_key(queue));
  return read(start("queue_len", deadline),
              [&](const KeyValues& state) { return Result<std::int64_t>(state.queue_len(queue)); });
}

Result<std::vector<std::string>> FileStore::list_keys(When deadline) {
  return read(start("list_keys", deadline), [](const KeyValues& state) -> Result<std::vector<std::string>> {
    std::vector<std::string> keys = state.list_keys();
    LOCKSTEP_TRY(check_answer_size("list_keys", items_size(keys)));
    return keys;
  });
}

Result<std::unique_ptr<Store>> FileStore::clone(When deadline) {
  const Call call = start("clone", deadline);
  std::unique_ptr<FileStore> store;
  {
    MutexLock lock(mutex_);
    LOCKSTEP_TRY(enter(call, LockKind::kShared));
    store.reset(new FileStore(file_.sibling(), StoreOptions{.timeout = timeout(), .clock = &clock_}));
    file_.end();
  }
  LOCKSTEP_TRY(store->read(call, [](const KeyValues&) { return Status(); }));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace lockstep::store
