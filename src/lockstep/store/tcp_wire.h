// The messages between TcpStore and its server, as bytes. Grammar: docs/wire/store.md.
//
// Pure functions over bytes: no I/O, no encryption (tcp_frame.h does that), no waiting. Parsers check every
// length against its limit and against what is left of the message before anything is made of it; what they
// return are views into the message.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::store {

// Of one message, in either direction, without frame header and tag.
constexpr std::size_t kMaxMessageSize = 32U << 20;
static_assert(kMaxCallSize + 64 <= kMaxMessageSize);  // a head is shorter

enum class Op : std::uint8_t {
  kSet = 1,
  kGet = 2,
  kCompareSet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kDeleteKey = 7,
  kNumKeys = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kQueuePush = 12,
  kQueuePop = 13,
  kQueueLen = 14,
  kListKeys = 15,
  kCancel = 16,  // the caller of request `target` has given up; never answered
  kBarrier = 17,
  kSetWill = 18,
};
constexpr Op kLastOp = Op::kSetWill;
// "set", "compare_set": the name of the Store method.
std::string_view op_name(Op op);

// Which requests are answered: all, or (set, queue_push, set_will) only those that fail.
enum class Answer : std::uint8_t { kAlways = 0, kOnError = 1 };

// One request. Which fields count depends on `op`; views point into the caller's bytes.
struct Request {
  std::uint64_t id = 0;
  Op op = Op::kSet;
  Answer answer = Answer::kAlways;
  Duration timeout{};  // get, wait, multi_get, queue_pop, barrier: how long the server may wait
  Store::OnEmpty on_empty = Store::OnEmpty::kWait;
  std::string_view key = {};
  ByteView value = {};  // compare_set: desired
  ByteView expected = {};
  std::int64_t amount = 0;  // barrier: how many make a round
  std::uint64_t target = 0;
  std::vector<std::string_view> keys = {};
  std::vector<ByteView> values = {};
};

// Appends the message. The caller has checked keys and values against their limits.
void write_request(const Request& request, Buffer& out);
// How many bytes write_request appends.
std::size_t request_size(const Request& request);
// Overwrites `out`, whose vectors keep their memory. kInvalid with kCorruptFrame or kLimitExceeded; `out.id`
// is then right if the message was long enough to hold one, else 0.
Status parse_request(ByteView message, Request& out);

// What the server says to one request: an error, or a body whose form follows from the request.
struct Response {
  std::uint64_t id = 0;
  Status status;
  ByteView body;
};
void write_error(std::uint64_t id, const Status& status, Buffer& out);
// No body, for set, wait, append, multi_set, queue_push, barrier, set_will.
void write_done(std::uint64_t id, Buffer& out);
void write_value(std::uint64_t id, ByteView value, Buffer& out);        // get, compare_set, queue_pop
void write_number(std::uint64_t id, std::int64_t number, Buffer& out);  // add, num_keys, queue_len
void write_flag(std::uint64_t id, bool flag, Buffer& out);              // check, delete_key
// multi_get, list_keys: first the head, then each item. The caller keeps to kMaxMessageSize.
void write_list_head(std::uint64_t id, std::uint32_t count, Buffer& out);
void write_list_item(ByteView item, Buffer& out);

Status parse_response(ByteView message, Response& out);
Result<std::int64_t> parse_number(ByteView body);
Result<bool> parse_flag(ByteView body);
// Views into `body`.
Result<std::vector<ByteView>> parse_list(ByteView body);

}  // namespace lockstep::store
