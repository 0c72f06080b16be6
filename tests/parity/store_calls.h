// A call on a store as a value, and what torch's and Lockstep's stores answer to it as text, so that the two
// can be compared.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lockstep/store/key_values.h"
#include "lockstep/store/store.h"

namespace c10d {
class Store;
}

namespace lockstep::parity {

enum class Op : std::uint8_t {
  kSet,
  kGet,
  kCompareSet,
  kAdd,
  kCheck,
  kWait,
  kDelete,
  kNumKeys,
  kAppend,
  kMultiGet,
  kMultiSet,
  kPush,
  kPop,  // waits
  kPopOrFail,
  kQueueLen,
  kListKeys,
  kBarrier,  // of one
};
constexpr int kOps = 17;

struct Call {
  Op op = Op::kSet;
  std::vector<std::string> keys = {};
  std::vector<std::string> values = {};
  std::int64_t amount = 0;
  bool runs_out = false;  // it waits for what does not come

  std::string text() const;
  std::chrono::milliseconds timeout() const;
};

// "ok", "true", "42", a value in quotes, a list of them, or the error: "timeout", "queue empty", "invalid",
// "disconnected", "error". Sets the store's timeout for the call.
std::string ask(c10d::Store& store, const Call& call);
std::string ask(Store& store, const Call& call);

// A random call on few keys and queues, outside the differences that docs/stores.md lists. `model` is what
// the store holds; it follows the call.
Call random_call(std::mt19937& random, store::KeyValues& model);

}  // namespace lockstep::parity
