#include "lockstep/store/store_errors.h"

#include "lockstep/base/text.h"
#include "lockstep/store/wills.h"

namespace lockstep::store {

using base::quoted;

namespace {

Status check_call(std::string_view op, std::size_t keys, std::size_t size) {
  const Cause cause{.failure = Failure::kLimitExceeded, .op = std::string(op)};
  if (keys > kMaxKeysPerCall) {
    return Status::invalid(
        cat(op, " names ", keys, " keys; the limit is ", kMaxKeysPerCall, ". Split the call."), cause);
  }
  if (size <= kMaxCallSize) return {};
  return Status::invalid(cat(op, " has ", Bytes(size), " of keys and values; the limit is ",
                             Bytes(kMaxCallSize), ". Split the call."),
                         cause);
}

std::string prefix(std::string_view store) { return store.empty() ? std::string() : cat(store, ": "); }

}  // namespace

Status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxKeySize) return {};
  const Cause cause{.failure = Failure::kLimitExceeded};
  if (key.empty()) return Status::invalid("a key must not be empty", cause);
  return Status::invalid(
      cat("the key ", quoted(key, 40), " has ", key.size(), " bytes; the limit is ", kMaxKeySize), cause);
}

Status check_keys(std::string_view op, Keys keys) {
  for (const std::string& key : keys) LOCKSTEP_TRY(check_key(key));
  return check_call(op, keys.size(), items_size(keys));
}

Status check_value_size(std::string_view key, std::size_t size) {
  if (size <= kMaxValueSize) return {};
  return Status::invalid(cat("the value of ", quoted(key), " would have ", Bytes(size), " (", size,
                             " bytes); the limit is ", Bytes(kMaxValueSize)),
                         {.failure = Failure::kLimitExceeded});
}

Status check_multi_set(Keys keys, std::span<const ByteView> values) {
  if (keys.size() != values.size()) {
    return Status::invalid(cat("multi_set needs as many values as keys, but got ", keys.size(), " keys and ",
                               values.size(), " values"));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    LOCKSTEP_TRY(check_key(keys[i]));
    LOCKSTEP_TRY(check_value_size(keys[i], values[i].size()));
  }
  return check_call("multi_set", keys.size(), items_size(keys) + items_size(values));
}

Status check_answer_size(std::string_view op, std::size_t size) {
  if (size <= kMaxCallSize) return {};
  return Status::invalid(cat("the answer to ", op, " would have ", Bytes(size), "; the limit is ",
                             Bytes(kMaxCallSize), ". Ask for fewer keys at once."),
                         {.failure = Failure::kLimitExceeded, .op = std::string(op)});
}

Status check_will_size(std::string_view key, std::size_t size) {
  if (size <= kMaxWillSize) return {};
  return Status::invalid(
      cat("the will for ", quoted(key), " has ", size, " bytes; the limit is ", kMaxWillSize),
      {.failure = Failure::kLimitExceeded});
}

Status check_barrier(std::string_view key, std::int64_t size) {
  LOCKSTEP_TRY(check_key(key));
  if (size >= 1) return {};
  return Status::invalid(cat("barrier ", quoted(key), ": a size of ", size, " makes no sense"));
}

std::string keys_text(Keys keys) {
  constexpr std::size_t kShown = 8;
  std::string out;
  for (std::size_t i = 0; i < keys.size() && i < kShown; ++i) {
    if (i > 0) out += ", ";
    out += quoted(keys[i]);
  }
  if (keys.size() > kShown) out += cat(" and ", keys.size() - kShown, " more");
  return out;
}

Status wait_timed_out(std::string_view store, std::string_view op, Keys missing, Duration waited) {
  return Status::timeout(cat(prefix(store), op, " waited ", waited, " and nobody set ", keys_text(missing)),
                         {.op = std::string(op)});
}

Status pop_timed_out(std::string_view store, std::string_view queue, Duration waited) {
  return Status::timeout(
      cat(prefix(store), "queue_pop waited ", waited, " and nobody pushed to the queue ", quoted(queue)),
      {.op = "queue_pop"});
}

Status barrier_timed_out(std::string_view store, std::string_view key, std::int64_t came, std::int64_t size) {
  return Status::timeout(cat(prefix(store), "barrier ", quoted(key), " timed out: ", (came - 1) % size + 1,
                             " of ", size, " have come"),
                         {.op = "barrier"});
}

Status queue_is_empty(std::string_view store, std::string_view queue) {
  return Status::timeout(cat(prefix(store), "the queue ", quoted(queue), " is empty"),
                         {.failure = Failure::kQueueEmpty, .op = "queue_pop"});
}

Status out_of_memory(std::string_view what) {
  return Status::internal(cat("out of memory: ", what), {.failure = Failure::kNoMemory});
}

Status too_many_wills(std::string_view key) {
  return Status::invalid(
      cat("the will for ", quoted(key), " is one too many; a connection may have ", kMaxWills),
      {.failure = Failure::kLimitExceeded});
}

std::string BarrierRound::key_of(std::string_view barrier) const { return cat(barrier, "/", number); }

std::string BarrierRound::previous_key_of(std::string_view barrier) const {
  return cat(barrier, "/", number - 1);
}

}  // namespace lockstep::store
