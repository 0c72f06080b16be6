#include "lockstep/store/key_values.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/store/store_errors.h"

namespace lockstep::store {

using base::quoted;

namespace {

// Runs what may allocate. std containers give the strong guarantee for what is called here.
template <typename Function>
Status allocating(std::string_view key, std::size_t size, Function&& function) {
  try {
    function();
    return {};
  } catch (const std::bad_alloc&) {
    return out_of_memory(cat("the store could not keep ", Bytes(size), " for ", quoted(key)));
  }
}

std::size_t cost(std::string_view key, std::size_t size) {
  return key.size() + size + KeyValues::kEntryOverhead;
}

bool equal(ByteView a, ByteView b) { return text_of(a) == text_of(b); }

}  // namespace

std::optional<ByteView> KeyValues::get(std::string_view key) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return std::nullopt;
  return ByteView(place->second);
}

bool KeyValues::check(Keys keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return contains(key); });
}

std::vector<std::string> KeyValues::missing(Keys keys) const {
  std::vector<std::string> out;
  for (const std::string& key : keys) {
    if (!contains(key)) out.push_back(key);
  }
  return out;
}

Status KeyValues::check_room(std::size_t more_entries, std::size_t more_bytes) const {
  if (entries() + more_entries <= limits_.max_entries && bytes_ + more_bytes <= limits_.max_bytes) return {};
  std::vector<std::string> bounds;
  if (limits_.max_entries != kNoLimit) bounds.push_back(cat(limits_.max_entries, " entries"));
  if (limits_.max_bytes != kNoLimit) bounds.push_back(cat(Bytes(limits_.max_bytes)));
  return Status::invalid(cat("the store is full: it holds ", entries(), " entries and ", Bytes(bytes_),
                             ", and its limit is ", base::join(bounds, " and ")),
                         {.failure = Failure::kLimitExceeded});
}

Status KeyValues::check_replacement(std::string_view key, const Buffer* current, std::size_t size) const {
  LOCKSTEP_TRY(check_key(key));
  LOCKSTEP_TRY(check_value_size(key, size));
  if (current == nullptr) return check_room(1, cost(key, size));
  // What shrinks always fits.
  return size > current->size() ? check_room(0, size - current->size()) : Status();
}

Status KeyValues::put(std::string_view key, Map<Buffer>::iterator place, ByteView value) {
  const bool exists = place != values_.end();
  LOCKSTEP_TRY(check_replacement(key, exists ? &place->second : nullptr, value.size()));
  const std::size_t before = exists ? cost(key, place->second.size()) : 0;
  LOCKSTEP_TRY(allocating(key, value.size(), [&] {
    if (exists) {
      place->second.assign(value.begin(), value.end());
    } else {
      values_.emplace(key, Buffer(value.begin(), value.end()));
    }
  }));
  bytes_ = bytes_ - before + cost(key, value.size());
  return {};
}

Status KeyValues::set(std::string_view key, ByteView value) { return put(key, values_.find(key), value); }

Result<KeyValues::Compared> KeyValues::compare_set(std::string_view key, ByteView expected,
                                                   ByteView desired) {
  LOCKSTEP_TRY(check_key(key));
  LOCKSTEP_TRY(check_value_size(key, std::max(expected.size(), desired.size())));
  const auto place = values_.find(key);
  if (place == values_.end()) {
    if (!expected.empty()) return Compared{expected, false};
    LOCKSTEP_TRY(put(key, place, desired));
    return Compared{*get(key), true};
  }
  if (!equal(place->second, expected)) return Compared{place->second, false};
  LOCKSTEP_TRY(put(key, place, desired));
  return Compared{place->second, true};
}

Result<std::int64_t> KeyValues::add(std::string_view key, std::int64_t amount) {
  const auto place = values_.find(key);
  std::int64_t sum = 0;
  if (place != values_.end()) {
    const auto number = base::parse_integer<std::int64_t>(text_of(place->second));
    if (!number) {
      return Status::invalid(cat("add needs a number, but the value of ", quoted(key), " is ",
                                 quoted(text_of(place->second), 40), "; it was left as it is"));
    }
    sum = *number;
  }
  std::int64_t after = 0;
  if (__builtin_add_overflow(sum, amount, &after)) {
    return Status::invalid(cat("adding ", amount, " to ", quoted(key), ", which is ", sum,
                               ", leaves the range of 64 bits; it was left as it is"));
  }
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), after).ptr;
  LOCKSTEP_TRY(put(key, place, bytes_of(std::string_view(digits, end))));
  return after;
}

bool KeyValues::delete_key(std::string_view key) {
  const auto place = values_.find(key);
  if (place == values_.end()) return false;
  bytes_ -= cost(key, place->second.size());
  values_.erase(place);
  return true;
}

Status KeyValues::append(std::string_view key, ByteView value) {
  const auto place = values_.find(key);
  if (place == values_.end()) return put(key, place, value);
  Buffer& current = place->second;
  LOCKSTEP_TRY(check_replacement(key, &current, current.size() + value.size()));
  LOCKSTEP_TRY(
      allocating(key, value.size(), [&] { current.insert(current.end(), value.begin(), value.end()); }));
  bytes_ += value.size();
  return {};
}

Status KeyValues::multi_set(Keys keys, std::span<const ByteView> values) {
  LOCKSTEP_TRY(check_multi_set(keys, values));
  if (keys.empty()) return {};
  // All that can fail for want of memory comes first: the new entries, and the room to take them over.
  Map<Buffer> fresh;
  std::size_t new_entries = 0, more = 0, less = 0;
  LOCKSTEP_TRY(allocating(keys.front(), items_size(values), [&] {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      fresh.insert_or_assign(keys[i], Buffer(values[i].begin(), values[i].end()));
    }
    values_.reserve(values_.size() + fresh.size());
  }));
  for (const auto& [key, value] : fresh) {
    const auto place = values_.find(key);
    more += cost(key, value.size());
    if (place == values_.end()) {
      ++new_entries;
    } else {
      less += cost(key, place->second.size());
    }
  }
  if (new_entries > 0 || more > less) LOCKSTEP_TRY(check_room(new_entries, more > less ? more - less : 0));
  while (!fresh.empty()) {
    auto inserted = values_.insert(fresh.extract(fresh.begin()));
    if (!inserted.inserted) inserted.position->second = std::move(inserted.node.mapped());
  }
  bytes_ = bytes_ + more - less;
  return {};
}

Status KeyValues::queue_push(std::string_view queue, ByteView value) {
  LOCKSTEP_TRY(check_key(queue));
  LOCKSTEP_TRY(check_value_size(queue, value.size()));
  LOCKSTEP_TRY(check_room(1, cost(queue, value.size())));
  LOCKSTEP_TRY(allocating(queue, value.size(), [&] {
    Buffer copy(value.begin(), value.end());
    const auto place = queues_.find(queue);
    if (place != queues_.end()) {
      place->second.push_back(std::move(copy));
    } else {
      std::deque<Buffer> fresh;
      fresh.push_back(std::move(copy));
      queues_.emplace(queue, std::move(fresh));
    }
  }));
  ++queued_;
  bytes_ += cost(queue, value.size());
  return {};
}

std::optional<Buffer> KeyValues::queue_pop(std::string_view queue) {
  const auto place = queues_.find(queue);
  if (place == queues_.end()) return std::nullopt;
  Buffer value = std::move(place->second.front());
  place->second.pop_front();
  --queued_;
  bytes_ -= cost(queue, value.size());
  if (place->second.empty()) queues_.erase(place);
  return value;
}

std::int64_t KeyValues::queue_len(std::string_view queue) const {
  const auto place = queues_.find(queue);
  return place == queues_.end() ? 0 : static_cast<std::int64_t>(place->second.size());
}

std::size_t KeyValues::answer_size(Keys keys) const {
  std::size_t size = 0;
  for (const std::string& key : keys) size += kItemOverhead + get(key)->size();
  return size;
}

std::vector<std::string> KeyValues::list_keys() const {
  std::vector<std::string> out;
  out.reserve(values_.size());
  for (const auto& [key, value] : values_) out.push_back(key);
  return out;
}

void KeyValues::visit(const Visit& on_key, const Visit& on_queued) const {
  for (const auto& [key, value] : values_) on_key(key, value);
  for (const auto& [name, queue] : queues_) {
    for (const Buffer& value : queue) on_queued(name, value);
  }
}

Result<Buffer> copy_of(ByteView value) {
  try {
    return Buffer(value.begin(), value.end());
  } catch (const std::bad_alloc&) {
    return out_of_memory(cat("no room for a value of ", Bytes(value.size())));
  }
}

}  // namespace lockstep::store
