#include "lockstep/store/tcp_wire.h"

#include <gmock/gmock.h>

#include <limits>
#include <random>

#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using namespace std::chrono_literals;
using ::lockstep::testing::FailureIs;
using ::lockstep::testing::IsOkAnd;
using ::lockstep::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Buffer bytes_of_request(const Request& request) {
  Buffer out;
  write_request(request, out);
  return out;
}

// One of every kind, with every field that its kind has.
std::vector<Request> every_request() {
  const std::vector<std::string_view> keys = {"a", "bb", "c"};
  const std::vector<ByteView> values = {bytes_of("1"), bytes_of(""), bytes_of("333")};
  std::vector<Request> requests = {
      {.op = Op::kSet, .answer = Answer::kOnError, .key = "key", .value = bytes_of("value")},
      {.op = Op::kGet, .timeout = 5s, .key = "key"},
      {.op = Op::kCompareSet, .key = "key", .value = bytes_of("new"), .expected = bytes_of("old")},
      {.op = Op::kAdd, .key = "key", .amount = std::numeric_limits<std::int64_t>::min()},
      {.op = Op::kCheck, .keys = keys},
      {.op = Op::kWait, .timeout = 1us, .keys = keys},
      {.op = Op::kDeleteKey, .key = "key"},
      {.op = Op::kNumKeys},
      {.op = Op::kAppend, .key = "key", .value = bytes_of("more")},
      {.op = Op::kMultiGet, .timeout = 300s, .keys = keys},
      {.op = Op::kMultiSet, .keys = keys, .values = values},
      {.op = Op::kQueuePush, .answer = Answer::kOnError, .key = "queue", .value = bytes_of("item")},
      {.op = Op::kQueuePop, .timeout = 1ms, .on_empty = Store::OnEmpty::kFail, .key = "queue"},
      {.op = Op::kQueueLen, .key = "queue"},
      {.op = Op::kListKeys},
      {.op = Op::kCancel, .target = 41},
      {.op = Op::kBarrier, .timeout = 5s, .key = "key", .amount = 4},
      {.op = Op::kSetWill, .answer = Answer::kOnError, .key = "key", .value = bytes_of("last")},
  };
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].id = i + 1;
  return requests;
}

TEST(TcpWire, EveryRequestComesBackAsItWas) {
  Request parsed;
  for (const Request& request : every_request()) {
    SCOPED_TRACE(op_name(request.op));
    const Buffer message = bytes_of_request(request);
    EXPECT_EQ(message.size(), request_size(request));
    ASSERT_OK(parse_request(message, parsed));
    EXPECT_EQ(parsed.id, request.id);
    EXPECT_EQ(parsed.op, request.op);
    EXPECT_EQ(parsed.answer, request.answer);
    EXPECT_EQ(parsed.timeout, request.timeout);
    // Whatever was read is written again the same.
    EXPECT_EQ(bytes_of_request(parsed), message);
  }
}

TEST(TcpWire, ARequestThatIsCutShortOrTooLongIsRefused) {
  Request parsed;
  for (const Request& request : every_request()) {
    SCOPED_TRACE(op_name(request.op));
    Buffer message = bytes_of_request(request);
    for (std::size_t size = 0; size < message.size(); ++size) {
      EXPECT_THAT(parse_request(ByteView(message).first(size), parsed), StatusIs(Code::kInvalid)) << size;
    }
    message.push_back(std::byte{0});
    EXPECT_THAT(parse_request(message, parsed), FailureIs(Failure::kCorruptFrame));
  }
}

TEST(TcpWire, UnknownOperationsAndModesAreRefused) {
  Request parsed;
  Buffer message = bytes_of_request({.id = 1, .op = Op::kNumKeys});
  for (const int op : {0, static_cast<int>(kLastOp) + 1, 255}) {
    message[8] = static_cast<std::byte>(op);
    EXPECT_THAT(parse_request(message, parsed), StatusIs(Code::kInvalid, HasSubstr("unknown operation")));
  }
  message[8] = static_cast<std::byte>(Op::kNumKeys);
  message[9] = std::byte{1};
  EXPECT_THAT(parse_request(message, parsed), StatusIs(Code::kInvalid, HasSubstr("always answered")));
  message[9] = std::byte{2};
  EXPECT_THAT(parse_request(message, parsed), StatusIs(Code::kInvalid, HasSubstr("answer mode")));
}

TEST(TcpWire, AnEmptyKeyIsRefused) {
  Request parsed;
  for (const Op op : {Op::kSet, Op::kGet, Op::kAdd, Op::kQueuePop, Op::kBarrier}) {
    EXPECT_THAT(parse_request(bytes_of_request({.id = 1, .op = op}), parsed),
                FailureIs(Failure::kCorruptFrame));
  }
  EXPECT_THAT(parse_request(bytes_of_request({.id = 1, .op = Op::kCheck, .keys = {"a", ""}}), parsed),
              FailureIs(Failure::kCorruptFrame));
}

// F15: a length is compared with its limit and with the rest of the message before anything is made of it.
TEST(TcpWire, AnnouncedSizesAreNotBelieved) {
  Request parsed;
  for (const std::uint32_t length : {0x7fffffffU, 0xffffffffU, static_cast<std::uint32_t>(kMaxKeySize) + 1}) {
    Buffer key = bytes_of_request({.id = 1, .op = Op::kGet, .key = "k"});
    std::memcpy(key.data() + 18, &length, 4);
    EXPECT_THAT(parse_request(key, parsed), FailureIs(Failure::kCorruptFrame));
    Buffer keys = bytes_of_request({.id = 1, .op = Op::kWait});
    std::memcpy(keys.data() + 18, &length, 4);
    EXPECT_THAT(parse_request(keys, parsed), StatusIs(Code::kInvalid));
    EXPECT_EQ(parsed.keys.capacity(), 0U);
    Buffer list;
    write_list_head(1, length, list);
    Response response;
    ASSERT_OK(parse_response(list, response));
    EXPECT_THAT(parse_list(response.body), FailureIs(Failure::kCorruptFrame));
  }
}

TEST(TcpWire, ATimeoutOfForeverIsAYear) {
  Request parsed;
  Buffer message = bytes_of_request({.id = 1, .op = Op::kGet, .key = "k"});
  const std::uint64_t forever = std::numeric_limits<std::uint64_t>::max();
  std::memcpy(message.data() + 10, &forever, 8);
  ASSERT_OK(parse_request(message, parsed));
  EXPECT_EQ(parsed.timeout, 365 * 24h);
}

TEST(TcpWire, AnswersComeBackAsTheyWere) {
  Response response;
  Buffer message;
  write_value(7, bytes_of("value"), message);
  ASSERT_OK(parse_response(message, response));
  EXPECT_EQ(response.id, 7U);
  EXPECT_OK(response.status);
  EXPECT_EQ(text_of(response.body), "value");

  message.clear();
  write_number(8, -5, message);
  ASSERT_OK(parse_response(message, response));
  EXPECT_THAT(parse_number(response.body), IsOkAnd(-5));
  EXPECT_THAT(parse_flag(response.body), FailureIs(Failure::kCorruptFrame));

  message.clear();
  write_flag(9, true, message);
  ASSERT_OK(parse_response(message, response));
  EXPECT_THAT(parse_flag(response.body), IsOkAnd(true));
  EXPECT_THAT(parse_number(response.body), FailureIs(Failure::kCorruptFrame));

  message.clear();
  write_list_head(10, 2, message);
  write_list_item(bytes_of("one"), message);
  write_list_item({}, message);
  ASSERT_OK(parse_response(message, response));
  ASSERT_OK_AND_ASSIGN(const auto items, parse_list(response.body));
  EXPECT_EQ(items.size(), 2U);
  EXPECT_EQ(text_of(items[0]), "one");
  EXPECT_TRUE(items[1].empty());
}

TEST(TcpWire, AnErrorKeepsItsCodeFailureAndText) {
  Buffer message;
  write_error(3, Status::timeout("nobody set \"k\"", {.failure = Failure::kQueueEmpty}), message);
  Response response;
  ASSERT_OK(parse_response(message, response));
  EXPECT_THAT(response.status, StatusIs(Code::kTimeout, "nobody set \"k\""));
  EXPECT_THAT(response.status, FailureIs(Failure::kQueueEmpty));
  message[8] = std::byte{200};
  EXPECT_THAT(parse_response(message, response), FailureIs(Failure::kCorruptFrame));
  message[8] = std::byte{2};
  message[9] = std::byte{200};
  EXPECT_THAT(parse_response(message, response), FailureIs(Failure::kCorruptFrame));
  for (std::size_t size = 0; size < message.size(); ++size) {
    EXPECT_THAT(parse_response(ByteView(message).first(size), response), FailureIs(Failure::kCorruptFrame));
  }
}

}  // namespace
}  // namespace lockstep::store
