#include "lockstep/store/tcp_tenant.h"

#include <new>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/store/store_errors.h"
#include "lockstep/store/wills.h"

namespace lockstep::store {
namespace {

// The client puts the name by which it knows the store before what the server says.
constexpr std::string_view kUnnamed;

void answer_list(std::string_view op, std::uint64_t id, std::span<const ByteView> items, Answers& client) {
  if (const Status status = check_answer_size(op, items_size(items)); !status.ok()) {
    return client.error(id, status);
  }
  client.list(id, items);
}

std::vector<std::string> copy_keys(const Request& request) {
  if (request.op == Op::kGet || request.op == Op::kQueuePop) return {std::string(request.key)};
  return {request.keys.begin(), request.keys.end()};
}

// The answer to a write; a client that asked for errors only hears nothing else.
void answer_write(const Request& request, const Status& status, Answers& client) {
  if (!status.ok()) return client.error(request.id, status);
  if (request.answer == Answer::kAlways) client.done(request.id);
}

}  // namespace

Tenant::Tenant(const TenantOptions& options, const Clock& clock)
    : job_(base::job_hash(options.job_id)),
      epoch_(options.epoch),
      secret_(options.secret),
      max_connections_(
          options.max_connections.value_or(2 * static_cast<std::size_t>(options.world.value) + 16)),
      max_memory_(options.max_memory.value),
      clock_(clock),
      values_(KeyValues::Limits{.max_bytes = options.max_memory.value}) {}

void Tenant::execute(const Request& request, Answers& client) {
  try {
    execute_checked(request, client);
  } catch (const std::bad_alloc&) {
    client.error(request.id,
                 out_of_memory(cat("the store's process has none left for ", op_name(request.op))));
  }
}

void Tenant::execute_checked(const Request& request, Answers& client) {
  switch (request.op) {
    case Op::kSet:
      return set(request, client);
    case Op::kAppend:
      return append(request, client);
    case Op::kCompareSet:
      return compare_set(request, client);
    case Op::kAdd:
      return add(request, client);
    case Op::kMultiSet:
      return multi_set(request, client);
    case Op::kQueuePush:
      return queue_push(request, client);
    case Op::kSetWill:
      return set_will(request, client);
    case Op::kQueuePop:
      return queue_pop(request, client);
    case Op::kListKeys:
      return list_keys(request, client);
    case Op::kGet:
      // The usual case, without a copy of the key.
      if (const auto value = values_.get(request.key)) return client.value(request.id, *value);
      return wait_for_keys(request, client);
    case Op::kBarrier:
      return barrier(request, client);
    case Op::kWait:
    case Op::kMultiGet:
      return wait_for_keys(request, client);
    case Op::kCheck:
      return client.flag(request.id, values_.check(copy_keys(request)));
    case Op::kDeleteKey:
      return client.flag(request.id, values_.delete_key(request.key));
    case Op::kNumKeys:
      return client.number(request.id, values_.num_keys());
    case Op::kQueueLen:
      return client.number(request.id, values_.queue_len(request.key));
    case Op::kCancel:
      return waiters_.cancel(client, request.target);
  }
}

void Tenant::set(const Request& request, Answers& client) {
  const Status status = values_.set(request.key, request.value);
  answer_write(request, status, client);
  if (status.ok()) key_was_set(request.key);
}

void Tenant::append(const Request& request, Answers& client) {
  const Status status = values_.append(request.key, request.value);
  answer_write(request, status, client);
  if (status.ok()) key_was_set(request.key);
}

void Tenant::compare_set(const Request& request, Answers& client) {
  const auto compared = values_.compare_set(request.key, request.expected, request.value);
  if (!compared.ok()) return client.error(request.id, compared.status());
  client.value(request.id, compared->value);
  if (compared->changed) key_was_set(request.key);
}

void Tenant::add(const Request& request, Answers& client) {
  const auto sum = values_.add(request.key, request.amount);
  if (!sum.ok()) return client.error(request.id, sum.status());
  client.number(request.id, *sum);
  key_was_set(request.key);
}

void Tenant::multi_set(const Request& request, Answers& client) {
  const Status status = values_.multi_set(copy_keys(request), request.values);
  answer_write(request, status, client);
  if (!status.ok()) return;
  for (const std::string_view key : request.keys) key_was_set(key);
}

void Tenant::set_will(const Request& request, Answers& client) {
  if (const Status status = check_key(request.key); !status.ok()) return client.error(request.id, status);
  if (const Status status = check_will_size(request.key, request.value.size()); !status.ok())
    return client.error(request.id, status);
  auto& wills = wills_[&client];
  const auto known = wills.find(request.key);
  Status status;
  if (request.value.empty()) {
    if (known != wills.end()) wills.erase(known);
  } else if (known != wills.end()) {
    known->second.assign(request.value.begin(), request.value.end());
  } else if (wills.size() < kMaxWills) {
    wills.emplace(request.key, Buffer(request.value.begin(), request.value.end()));
  } else {
    status = too_many_wills(request.key);
  }
  if (wills.empty()) wills_.erase(&client);
  answer_write(request, status, client);
}

void Tenant::execute_wills(const Answers& client) {
  const auto found = wills_.find(&client);
  if (found == wills_.end()) return;
  const auto wills = std::move(found->second);
  wills_.erase(found);
  for (const auto& [key, value] : wills) {
    if (values_.contains(key) || !values_.set(key, value).ok()) continue;
    key_was_set(key);
  }
}

void Tenant::forget(const Answers& client) {
  waiters_.forget(client);
  wills_.erase(&client);
}

void Tenant::queue_push(const Request& request, Answers& client) {
  const Status status = values_.queue_push(request.key, request.value);
  answer_write(request, status, client);
  if (!status.ok()) return;
  if (const auto waiter = waiters_.take_first_for_queue(request.key)) {
    waiter->client->value(waiter->id, *values_.queue_pop(request.key));
  }
}

void Tenant::queue_pop(const Request& request, Answers& client) {
  if (const auto value = values_.queue_pop(request.key)) return client.value(request.id, *value);
  if (request.on_empty == Store::OnEmpty::kFail) {
    return client.error(request.id, queue_is_empty(kUnnamed, request.key));
  }
  const base::TimePoint now = clock_.now();
  waiters_.add_for_queue({.client = &client,
                          .id = request.id,
                          .op = request.op,
                          .keys = copy_keys(request),
                          .since = now,
                          .until = now + request.timeout});
}

// As Store::barrier, in one step.
void Tenant::barrier(const Request& request, Answers& client) {
  if (const Status status = check_barrier(request.key, request.amount); !status.ok()) {
    return client.error(request.id, status);
  }
  const auto arrived = values_.add(request.key, 1);
  if (!arrived.ok()) return client.error(request.id, arrived.status());
  key_was_set(request.key);
  const BarrierRound round(*arrived, request.amount);
  const std::string done = round.key_of(request.key);
  if (round.complete) {
    if (const Status status = values_.set(done, {}); !status.ok()) return client.error(request.id, status);
    client.done(request.id);
    key_was_set(done);
    if (round.number > 0) values_.delete_key(round.previous_key_of(request.key));
    return;
  }
  const base::TimePoint now = clock_.now();
  proceed({.client = &client,
           .id = request.id,
           .op = request.op,
           .keys = {done},
           .size = request.amount,
           .since = now,
           .until = now + request.timeout});
}

void Tenant::list_keys(const Request& request, Answers& client) {
  const std::vector<std::string> keys = values_.list_keys();
  std::vector<ByteView> items;
  items.reserve(keys.size());
  for (const std::string& key : keys) items.push_back(bytes_of(key));
  answer_list(op_name(request.op), request.id, items, client);
}

void Tenant::wait_for_keys(const Request& request, Answers& client) {
  const base::TimePoint now = clock_.now();
  proceed({.client = &client,
           .id = request.id,
           .op = request.op,
           .keys = copy_keys(request),
           .since = now,
           .until = now + request.timeout});
}

void Tenant::proceed(Waiter waiter) {
  for (std::size_t i = 0; i < waiter.keys.size(); ++i) {
    if (!values_.contains(waiter.keys[i])) return waiters_.add_for_key(std::move(waiter), i);
  }
  if (waiter.op == Op::kWait || waiter.op == Op::kBarrier) return waiter.client->done(waiter.id);
  answer_with_values(waiter);
}

void Tenant::answer_with_values(const Waiter& waiter) {
  if (waiter.op == Op::kGet) return waiter.client->value(waiter.id, *values_.get(waiter.keys.front()));
  std::vector<ByteView> items;
  items.reserve(waiter.keys.size());
  for (const std::string& key : waiter.keys) items.push_back(*values_.get(key));
  answer_list(op_name(waiter.op), waiter.id, items, *waiter.client);
}

void Tenant::key_was_set(std::string_view key) {
  if (!waiters_.anyone_for_keys()) return;
  for (Waiter& waiter : waiters_.take_for_key(key)) proceed(std::move(waiter));
}

Status Tenant::timed_out(const Waiter& waiter, Duration waited) const {
  const std::string_view name = waiter.keys.front();
  if (waiter.op == Op::kQueuePop) return pop_timed_out(kUnnamed, name, waited);
  if (waiter.op == Op::kBarrier) {
    const std::string_view key = name.substr(0, name.rfind('/'));
    // Not there if somebody has meddled with the barrier's key; then the missing one is named.
    const auto value = values_.get(key);
    const auto came = value ? base::parse_integer<std::int64_t>(text_of(*value)) : std::nullopt;
    if (came) return barrier_timed_out(kUnnamed, key, *came, waiter.size);
  }
  return wait_timed_out(kUnnamed, op_name(waiter.op), values_.missing(waiter.keys), waited);
}

void Tenant::expire() {
  const base::TimePoint now = clock_.now();
  for (const Waiter& waiter : waiters_.take_expired(now)) {
    waiter.client->error(waiter.id, timed_out(waiter, now - waiter.since));
  }
}

}  // namespace lockstep::store
