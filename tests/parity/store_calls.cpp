#include "store_calls.h"

#include <algorithm>
#include <iterator>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/bytes.h"
#include "lockstep/base/check.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"

namespace lockstep::parity {

using base::join;

namespace {

using TorchBytes = std::vector<std::uint8_t>;

constexpr std::string_view kNames[kOps] = {"set",       "get",        "compare_set", "add",      "check",
                                           "wait",      "delete_key", "num_keys",    "append",   "multi_get",
                                           "multi_set", "queue_push", "queue_pop",   "pop_fail", "queue_len",
                                           "list_keys", "barrier"};

TorchBytes torch_bytes(const std::string& text) { return {text.begin(), text.end()}; }

// The whole of a short value; of a long one enough to tell it from others.
std::string value_text(ByteView bytes) {
  if (bytes.size() <= 100) return base::quoted(text_of(bytes));
  return cat(bytes.size(), " bytes with CRC32C ", base::crc32c(bytes));
}
std::string value_text(const TorchBytes& bytes) { return value_text(std::as_bytes(std::span(bytes))); }

template <typename Values>
std::string list_text(const Values& values) {
  std::vector<std::string> out;
  out.reserve(values.size());
  for (const auto& value : values) out.push_back(value_text(value));
  return cat("[", join(out), "]");
}

std::string sorted_text(std::vector<std::string> keys) {
  std::sort(keys.begin(), keys.end());
  for (std::string& key : keys) key = base::quoted(key);
  return cat("{", join(keys), "}");
}

// What torch answers; it throws where the answer is an error.
std::string answer(c10d::Store& store, const Call& call) {
  const auto key = [&] { return call.keys.at(0); };
  const auto value = [&](std::size_t i) { return torch_bytes(call.values.at(i)); };
  switch (call.op) {
    case Op::kSet:
      store.set(key(), value(0));
      return "ok";
    case Op::kGet:
      return value_text(store.get(key()));
    case Op::kCompareSet:
      return value_text(store.compareSet(key(), value(0), value(1)));
    case Op::kAdd:
      return cat(store.add(key(), call.amount));
    case Op::kCheck:
      return cat(store.check(call.keys));
    case Op::kWait:
      store.wait(call.keys);
      return "ok";
    case Op::kDelete:
      return cat(store.deleteKey(key()));
    case Op::kNumKeys:
      return cat(store.getNumKeys());
    case Op::kAppend:
      store.append(key(), value(0));
      return "ok";
    case Op::kMultiGet:
      return list_text(store.multiGet(call.keys));
    case Op::kMultiSet: {
      std::vector<TorchBytes> values;
      std::transform(call.values.begin(), call.values.end(), std::back_inserter(values), torch_bytes);
      store.multiSet(call.keys, values);
      return "ok";
    }
    case Op::kPush:
      store.queuePush(key(), value(0));
      return "ok";
    case Op::kPop:
      return value_text(store.queuePop(key(), true));
    case Op::kPopOrFail:
      return value_text(store.queuePop(key(), false));
    case Op::kQueueLen:
      return cat(store.queueLen(key()));
    case Op::kListKeys:
      return sorted_text(store.listKeys());
    case Op::kBarrier:
      store.barrier(key(), 1);
      return "ok";
  }
  return "no such call";
}

std::string error_text(const Status& status) {
  if (status.failure() == Failure::kQueueEmpty) return "queue empty";
  return std::string(base::code_name(status.code()));
}
std::string answer_text(const Status& status) { return status.ok() ? "ok" : error_text(status); }
std::string answer_text(const Result<Buffer>& result) {
  return result.ok() ? value_text(ByteView(*result)) : error_text(result.status());
}
std::string answer_text(const Result<std::vector<Buffer>>& result) {
  return result.ok() ? list_text(*result) : error_text(result.status());
}
std::string answer_text(const Result<std::vector<std::string>>& result) {
  return result.ok() ? sorted_text(*result) : error_text(result.status());
}
template <typename T>
std::string answer_text(const Result<T>& result) {
  return result.ok() ? cat(*result) : error_text(result.status());
}

}  // namespace

std::string Call::text() const {
  std::vector<std::string> arguments;
  arguments.reserve(keys.size() + values.size() + 1);
  for (const std::string& key : keys) arguments.push_back(base::quoted(key));
  for (const std::string& value : values) arguments.push_back("=" + base::quoted(value));
  if (op == Op::kAdd) arguments.push_back(cat(amount));
  return cat(kNames[static_cast<std::size_t>(op)], "(", join(arguments), ")");
}

std::chrono::milliseconds Call::timeout() const { return std::chrono::milliseconds(runs_out ? 30 : 30'000); }

std::string ask(c10d::Store& store, const Call& call) {
  store.setTimeout(call.timeout());
  try {
    return answer(store, call);
  } catch (const c10::DistQueueEmptyError&) {
    return "queue empty";
  } catch (const c10::DistNetworkError&) {
    return "disconnected";
  } catch (const c10::DistStoreError& error) {
    return std::string_view(error.what()).find("timeout") != std::string_view::npos ? "timeout" : "invalid";
  } catch (const std::exception&) {
    return "error";
  }
}

std::string ask(Store& store, const Call& call) {
  store.set_timeout(call.timeout());
  const auto key = [&]() -> const std::string& { return call.keys.at(0); };
  const auto value = [&](std::size_t i) { return bytes_of(call.values.at(i)); };
  switch (call.op) {
    case Op::kSet:
      return answer_text(store.set(key(), value(0)));
    case Op::kGet:
      return answer_text(store.get(key()));
    case Op::kCompareSet:
      return answer_text(store.compare_set(key(), value(0), value(1)));
    case Op::kAdd:
      return answer_text(store.add(key(), call.amount));
    case Op::kCheck:
      return answer_text(store.check(call.keys));
    case Op::kWait:
      return answer_text(store.wait(call.keys));
    case Op::kDelete:
      return answer_text(store.delete_key(key()));
    case Op::kNumKeys:
      return answer_text(store.num_keys());
    case Op::kAppend:
      return answer_text(store.append(key(), value(0)));
    case Op::kMultiGet:
      return answer_text(store.multi_get(call.keys));
    case Op::kMultiSet: {
      std::vector<Buffer> values;
      std::transform(call.values.begin(), call.values.end(), std::back_inserter(values),
                     [](const std::string& text) { return buffer_of(text); });
      return answer_text(store.multi_set(call.keys, values));
    }
    case Op::kPush:
      return answer_text(store.queue_push(key(), value(0)));
    case Op::kPop:
      return answer_text(store.queue_pop(key()));
    case Op::kPopOrFail:
      return answer_text(store.queue_pop(key(), Store::OnEmpty::kFail));
    case Op::kQueueLen:
      return answer_text(store.queue_len(key()));
    case Op::kListKeys:
      return answer_text(store.list_keys());
    case Op::kBarrier:
      return answer_text(store.barrier(key(), WorldSize(1)));
  }
  return "no such call";
}

namespace {

template <typename T>
const T& one_of(std::mt19937& random, const std::vector<T>& choices) {
  return choices[random() % choices.size()];
}

// What both stores do to their keys, on the model.
void follow(const Call& call, store::KeyValues& model) {
  const auto value = [&](std::size_t i) { return bytes_of(call.values.at(i)); };
  Status status;
  switch (call.op) {
    case Op::kSet:
      status = model.set(call.keys[0], value(0));
      break;
    case Op::kCompareSet:
      status = model.compare_set(call.keys[0], value(0), value(1)).status();
      break;
    case Op::kAdd:
      status = model.add(call.keys[0], call.amount).status();
      break;
    case Op::kDelete:
      model.delete_key(call.keys[0]);
      break;
    case Op::kAppend:
      status = model.append(call.keys[0], value(0));
      break;
    case Op::kMultiSet: {
      const std::vector<ByteView> values = {value(0), value(1)};
      status = model.multi_set(call.keys, values);
      break;
    }
    case Op::kPush:
      status = model.queue_push(call.keys[0], value(0));
      break;
    case Op::kPop:
    case Op::kPopOrFail:
      model.queue_pop(call.keys[0]);
      break;
    default:
      break;
  }
  LOCKSTEP_CHECK(status.ok(), status.text());
}

}  // namespace

Call random_call(std::mt19937& random, store::KeyValues& model) {
  static const std::vector<std::string> kKeys = {
      "a", "b", "a/b", "n", "key with spaces", std::string("nul\0nul", 7)};
  static const std::vector<std::string> kQueues = {"queue", "queue/2"};
  static const std::vector<std::string> kValues = {
      "", "0", "1", "-7", "42", "text", std::string("\0\xff", 2), std::string(300, 'x')};
  // Every op but the barrier, which leaves other keys behind than torch's.
  Call call{.op = static_cast<Op>(random() % (kOps - 1))};
  const auto key = [&] { return one_of(random, kKeys); };
  const auto value = [&] { return one_of(random, kValues); };
  call.keys = {key()};
  switch (call.op) {
    case Op::kSet:
    case Op::kAppend:
      call.values = {value()};
      break;
    case Op::kCompareSet: {
      // Half of them expect what is there.
      const auto current = model.get(call.keys[0]);
      call.values = {current && random() % 2 == 0 ? std::string(text_of(*current)) : value(), value()};
      break;
    }
    case Op::kAdd: {
      call.amount = static_cast<std::int64_t>(random() % 2001) - 1000;
      const auto current = model.get(call.keys[0]);
      // A documented difference, so it becomes a set.
      if (current && !base::parse_integer<std::int32_t>(text_of(*current))) call = {Op::kSet, {key()}, {"5"}};
      break;
    }
    case Op::kGet:
    case Op::kWait:
    case Op::kCheck:
    case Op::kMultiGet:
      for (std::size_t more = random() % 3; more > 0 && call.op != Op::kGet; --more)
        call.keys.push_back(key());
      // Few of the waits run out: each takes its time.
      if (call.op != Op::kCheck && !model.check(call.keys)) {
        call.runs_out = random() % 8 == 0;
        if (!call.runs_out) call.op = Op::kCheck;
      }
      break;
    case Op::kMultiSet:
      call.keys.push_back(key());
      call.values = {value(), value()};
      break;
    case Op::kPush:
      call = {Op::kPush, {one_of(random, kQueues)}, {value()}};
      break;
    case Op::kPop:
    case Op::kPopOrFail:
    case Op::kQueueLen:
      call.keys = {one_of(random, kQueues)};
      if (call.op == Op::kPop && model.queue_len(call.keys[0]) == 0) call.op = Op::kPopOrFail;
      break;
    default:
      break;
  }
  follow(call, model);
  return call;
}

}  // namespace lockstep::parity
