#include "lockstep/store/prefix_store.h"

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/store/store_errors.h"

namespace lockstep::store {

PrefixStore::PrefixStore(std::string_view prefix, std::shared_ptr<Store> inner)
    : prefix_(cat(prefix, "/")), inner_(std::move(inner)), timeout_(inner_->timeout()) {}

Result<std::string> PrefixStore::inner_key(std::string_view key) const {
  LOCKSTEP_TRY(check_key(key));
  return cat(prefix_, key);
}

Result<std::vector<std::string>> PrefixStore::inner_keys(Keys keys) const {
  std::vector<std::string> out;
  out.reserve(keys.size());
  for (const std::string& key : keys) {
    LOCKSTEP_ASSIGN(std::string name, inner_key(key));
    out.push_back(std::move(name));
  }
  return out;
}

Status PrefixStore::set(std::string_view key, ByteView value, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(key));
  return inner_->set(name, value, until(deadline));
}

Result<Buffer> PrefixStore::get(std::string_view key, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(key));
  return inner_->get(name, until(deadline));
}

Result<Buffer> PrefixStore::compare_set(std::string_view key, ByteView expected, ByteView desired,
                                        When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(key));
  return inner_->compare_set(name, expected, desired, until(deadline));
}

Result<std::int64_t> PrefixStore::add(std::string_view key, std::int64_t amount, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(key));
  return inner_->add(name, amount, until(deadline));
}

Result<bool> PrefixStore::check(Keys keys, When deadline) {
  LOCKSTEP_ASSIGN(const std::vector<std::string> names, inner_keys(keys));
  return inner_->check(names, until(deadline));
}

Status PrefixStore::wait(Keys keys, When deadline) {
  LOCKSTEP_ASSIGN(const std::vector<std::string> names, inner_keys(keys));
  return inner_->wait(names, until(deadline));
}

Status PrefixStore::barrier(std::string_view key, WorldSize size, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(key));
  return inner_->barrier(name, size, until(deadline));
}

Result<bool> PrefixStore::delete_key(std::string_view key, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(key));
  return inner_->delete_key(name, until(deadline));
}

Result<std::int64_t> PrefixStore::num_keys(When deadline) {
  LOCKSTEP_ASSIGN(const std::vector<std::string> keys, list_keys(deadline));
  return static_cast<std::int64_t>(keys.size());
}

Status PrefixStore::append(std::string_view key, ByteView value, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(key));
  return inner_->append(name, value, until(deadline));
}

Result<std::vector<Buffer>> PrefixStore::multi_get(Keys keys, When deadline) {
  LOCKSTEP_ASSIGN(const std::vector<std::string> names, inner_keys(keys));
  return inner_->multi_get(names, until(deadline));
}

Status PrefixStore::multi_set(Keys keys, std::span<const Buffer> values, When deadline) {
  LOCKSTEP_ASSIGN(const std::vector<std::string> names, inner_keys(keys));
  return inner_->multi_set(names, values, until(deadline));
}

Status PrefixStore::queue_push(std::string_view queue, ByteView value, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(queue));
  return inner_->queue_push(name, value, until(deadline));
}

Result<Buffer> PrefixStore::queue_pop(std::string_view queue, OnEmpty on_empty, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(queue));
  return inner_->queue_pop(name, on_empty, until(deadline));
}

Result<std::int64_t> PrefixStore::queue_len(std::string_view queue, When deadline) {
  LOCKSTEP_ASSIGN(const std::string name, inner_key(queue));
  return inner_->queue_len(name, until(deadline));
}

Result<std::vector<std::string>> PrefixStore::list_keys(When deadline) {
  LOCKSTEP_ASSIGN(std::vector<std::string> keys, inner_->list_keys(until(deadline)));
  std::erase_if(keys, [this](const std::string& key) { return !key.starts_with(prefix_); });
  for (std::string& key : keys) key.erase(0, prefix_.size());
  return keys;
}

Result<std::unique_ptr<Store>> PrefixStore::clone(When deadline) {
  LOCKSTEP_ASSIGN(std::shared_ptr<Store> inner, inner_->clone(until(deadline)));
  const std::string_view prefix = std::string_view(prefix_).substr(0, prefix_.size() - 1);
  auto out = std::make_unique<PrefixStore>(prefix, std::move(inner));
  out->set_timeout(timeout());
  return std::unique_ptr<Store>(std::move(out));
}

std::string PrefixStore::description() const {
  return cat("PrefixStore ", base::quoted(prefix_), " in ", inner_->description());
}

}  // namespace lockstep::store
