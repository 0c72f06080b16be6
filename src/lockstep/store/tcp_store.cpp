#include "lockstep/store/tcp_store.h"

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/store/store_errors.h"
#include "lockstep/store/tcp_channel.h"
#include "lockstep/store/tcp_connect.h"
#include "lockstep/store/tcp_wire.h"

namespace lockstep::store {
namespace {

// How long after the deadline the server's own answer to a wait may still come.
constexpr Duration kAnswerGrace = std::chrono::milliseconds(250);

// The connection on which this thread has posted last. An operation on another one first makes sure that this
// was executed, so that the operations of one thread take effect in order whatever stores they go to.
struct LastPost {
  const Channel* channel = nullptr;  // only compared
  std::weak_ptr<Channel> alive;
};
thread_local LastPost last_post;

void confirm_last_post(const Deadline& guard) {
  const std::shared_ptr<Channel> channel = last_post.alive.lock();
  last_post = {};
  if (!channel || !channel->has_unconfirmed()) return;
  Request request{.op = Op::kNumKeys};
  // If that store is lost, its own next call says so; it is no matter of this one.
  static_cast<void>(channel->call(request, guard, [](ByteView) { return Status(); }));
}

Result<Request> request_of_keys(Op op, Keys keys) {
  LOCKSTEP_TRY(check_keys(op_name(op), keys));
  Request request{.op = op};
  request.keys.assign(keys.begin(), keys.end());
  return request;
}

Buffer copy(ByteView bytes) { return {bytes.begin(), bytes.end()}; }

template <typename T>
Status assign(Result<T> parsed, T& out) {
  LOCKSTEP_ASSIGN(out, std::move(parsed));
  return {};
}

}  // namespace

Result<std::unique_ptr<TcpStore>> TcpStore::connect(const TcpStoreOptions& options,
                                                    const Deadline& deadline) {
  LOCKSTEP_ASSIGN(auto connected, connect_to_server(options, deadline));
  const LocalSocket local = connected.local() ? LocalSocket::kOn : LocalSocket::kOff;
  auto channel = std::make_shared<Channel>(std::move(connected), options.endpoint.text());
  return std::unique_ptr<TcpStore>(new TcpStore(options, deadline.clock(), std::move(channel), local));
}

TcpStore::TcpStore(const TcpStoreOptions& options, const Clock& clock, std::shared_ptr<Channel> channel,
                   LocalSocket local)
    : options_(options),
      clock_(clock),
      channel_(std::move(channel)),
      local_(local),
      timeout_(options.timeout.count()) {}

TcpStore::~TcpStore() = default;

std::string TcpStore::description() const { return cat("TcpStore ", options_.endpoint.text()); }

Deadline TcpStore::resolve(const When& deadline) const { return deadline ? *deadline : clock_.in(timeout()); }

template <typename OnBody>
Status TcpStore::call(Request& request, const When& deadline, const OnBody& on_body) {
  const Deadline until = resolve(deadline);
  const Deadline guard(until.clock(), until.at() + kAnswerGrace);
  if (last_post.channel != nullptr && last_post.channel != channel_.get()) {
    confirm_last_post(guard);
  }
  request.timeout = until.remaining();
  Status status = channel_->call(request, guard, on_body);
  if (!status.ok() && status.cause().op.empty()) {
    Cause cause = status.cause();
    cause.op = op_name(request.op);
    status = status.with_cause(std::move(cause));
  }
  return status;
}

Status TcpStore::write(Request& request, const When& deadline) {
  LOCKSTEP_TRY(check_key(request.key));
  LOCKSTEP_TRY(check_value_size(request.key, request.value.size()));
  if (request.value.size() > kMaxPosted) {
    return call(request, deadline, [](ByteView) { return Status(); });
  }
  const Deadline guard = resolve(deadline);
  if (last_post.channel != channel_.get()) {
    confirm_last_post(guard);
    last_post = {.channel = channel_.get(), .alive = channel_};
  }
  return channel_->post(request, guard);
}

Status TcpStore::set(std::string_view key, ByteView value, When deadline) {
  Request request{.op = Op::kSet, .key = key, .value = value};
  return write(request, deadline);
}

Status TcpStore::append(std::string_view key, ByteView value, When deadline) {
  LOCKSTEP_TRY(check_key(key));
  LOCKSTEP_TRY(check_value_size(key, value.size()));
  Request request{.op = Op::kAppend, .key = key, .value = value};
  // Only the server knows how long the whole would be.
  return call(request, deadline, [](ByteView) { return Status(); });
}

Status TcpStore::queue_push(std::string_view queue, ByteView value, When deadline) {
  Request request{.op = Op::kQueuePush, .key = queue, .value = value};
  return write(request, deadline);
}

Status TcpStore::set_will(std::string_view key, ByteView value, When deadline) {
  LOCKSTEP_TRY(check_will_size(key, value.size()));
  Request request{.op = Op::kSetWill, .key = key, .value = value};
  return write(request, deadline);
}

Result<Buffer> TcpStore::get(std::string_view key, When deadline) {
  LOCKSTEP_TRY(check_key(key));
  Request request{.op = Op::kGet, .key = key};
  Buffer value;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) {
    value = copy(body);
    return Status();
  }));
  return value;
}

Result<Buffer> TcpStore::compare_set(std::string_view key, ByteView expected, ByteView desired,
                                     When deadline) {
  LOCKSTEP_TRY(check_key(key));
  LOCKSTEP_TRY(check_value_size(key, expected.size()));
  LOCKSTEP_TRY(check_value_size(key, desired.size()));
  Request request{.op = Op::kCompareSet, .key = key, .value = desired, .expected = expected};
  Buffer value;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) {
    value = copy(body);
    return Status();
  }));
  return value;
}

Result<std::int64_t> TcpStore::add(std::string_view key, std::int64_t amount, When deadline) {
  LOCKSTEP_TRY(check_key(key));
  Request request{.op = Op::kAdd, .key = key, .amount = amount};
  std::int64_t sum = 0;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) { return assign(parse_number(body), sum); }));
  return sum;
}

Result<bool> TcpStore::check(Keys keys, When deadline) {
  LOCKSTEP_ASSIGN(Request request, request_of_keys(Op::kCheck, keys));
  bool all = false;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) { return assign(parse_flag(body), all); }));
  return all;
}

Status TcpStore::wait(Keys keys, When deadline) {
  LOCKSTEP_ASSIGN(Request request, request_of_keys(Op::kWait, keys));
  return call(request, deadline, [](ByteView) { return Status(); });
}

Result<bool> TcpStore::delete_key(std::string_view key, When deadline) {
  LOCKSTEP_TRY(check_key(key));
  Request request{.op = Op::kDeleteKey, .key = key};
  bool deleted = false;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) { return assign(parse_flag(body), deleted); }));
  return deleted;
}

Result<std::int64_t> TcpStore::num_keys(When deadline) {
  Request request{.op = Op::kNumKeys};
  std::int64_t count = 0;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) { return assign(parse_number(body), count); }));
  return count;
}

Result<std::vector<Buffer>> TcpStore::multi_get(Keys keys, When deadline) {
  LOCKSTEP_ASSIGN(Request request, request_of_keys(Op::kMultiGet, keys));
  std::vector<Buffer> values;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) -> Status {
    LOCKSTEP_ASSIGN(const auto items, parse_list(body));
    values.reserve(items.size());
    for (const ByteView item : items) values.push_back(copy(item));
    return {};
  }));
  return values;
}

Status TcpStore::multi_set(Keys keys, std::span<const Buffer> values, When deadline) {
  Request request{.op = Op::kMultiSet};
  request.values.assign(values.begin(), values.end());
  LOCKSTEP_TRY(check_multi_set(keys, request.values));
  request.keys.assign(keys.begin(), keys.end());
  return call(request, deadline, [](ByteView) { return Status(); });
}

Result<Buffer> TcpStore::queue_pop(std::string_view queue, OnEmpty on_empty, When deadline) {
  LOCKSTEP_TRY(check_key(queue));
  Request request{.op = Op::kQueuePop, .on_empty = on_empty, .key = queue};
  Buffer value;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) {
    value = copy(body);
    return Status();
  }));
  return value;
}

Result<std::int64_t> TcpStore::queue_len(std::string_view queue, When deadline) {
  LOCKSTEP_TRY(check_key(queue));
  Request request{.op = Op::kQueueLen, .key = queue};
  std::int64_t length = 0;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) { return assign(parse_number(body), length); }));
  return length;
}

Result<std::vector<std::string>> TcpStore::list_keys(When deadline) {
  Request request{.op = Op::kListKeys};
  std::vector<std::string> keys;
  LOCKSTEP_TRY(call(request, deadline, [&](ByteView body) -> Status {
    LOCKSTEP_ASSIGN(const auto items, parse_list(body));
    keys.reserve(items.size());
    for (const ByteView item : items) keys.emplace_back(text_of(item));
    return {};
  }));
  return keys;
}

Status TcpStore::barrier(std::string_view key, WorldSize size, When deadline) {
  LOCKSTEP_TRY(check_barrier(key, size.value));
  Request request{.op = Op::kBarrier, .key = key, .amount = size.value};
  return call(request, deadline, [](ByteView) { return Status(); });
}

Result<std::unique_ptr<Store>> TcpStore::clone(When deadline) {
  TcpStoreOptions options = options_;
  options.timeout = timeout();
  LOCKSTEP_ASSIGN(auto other, connect(options, resolve(deadline)));
  return std::unique_ptr<Store>(std::move(other));
}

Result<HostedStore> host_store(TcpServerOptions options, const Deadline& deadline) {
  if (options.tenants.empty())
    return Status::invalid("A hosted store needs a tenant: the job that it serves.");
  const TenantOptions tenant = options.tenants.front();
  HostedStore hosted;
  LOCKSTEP_ASSIGN(hosted.server, TcpStoreServer::start(std::move(options), deadline.clock()));
  const TcpStoreOptions client{.endpoint = hosted.server->endpoint(),
                               .job_id = tenant.job_id,
                               .epoch = tenant.epoch,
                               .secret = tenant.secret};
  LOCKSTEP_ASSIGN(hosted.store, TcpStore::connect(client, deadline));
  return hosted;
}

}  // namespace lockstep::store
