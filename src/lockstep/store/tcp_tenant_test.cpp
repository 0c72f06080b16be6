#include "lockstep/store/tcp_tenant.h"

#include <gmock/gmock.h>

#include <deque>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/store/wills.h"
#include "lockstep/testing/fake_clock.h"

namespace lockstep::store {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Notes its answers as text: "3: value v".
class Client final : public Answers {
 public:
  void done(std::uint64_t id) override { note(id, "done"); }
  void value(std::uint64_t id, ByteView value) override { note(id, cat("value ", text_of(value))); }
  void number(std::uint64_t id, std::int64_t number) override { note(id, cat("number ", number)); }
  void flag(std::uint64_t id, bool flag) override { note(id, cat("flag ", flag)); }
  void list(std::uint64_t id, std::span<const ByteView> items) override {
    std::string text = "list";
    for (const ByteView item : items) text += cat(" ", text_of(item));
    note(id, text);
  }
  void error(std::uint64_t id, const Status& status) override { note(id, status.text()); }

  // Since the last time.
  std::vector<std::string> heard() { return std::exchange(heard_, {}); }

 private:
  void note(std::uint64_t id, std::string_view what) { heard_.push_back(cat(id, ": ", what)); }
  std::vector<std::string> heard_;
};

class TenantTest : public ::testing::Test {
 protected:
  ::lockstep::testing::FakeClock clock_;
  Tenant tenant_{TenantOptions{.job_id = "job", .max_memory = Bytes::mib(1)}, clock_};
  Client a_;
  Client b_;

  void set(std::string_view key, std::string_view value) {
    tenant_.execute({.op = Op::kSet, .answer = Answer::kOnError, .key = key, .value = bytes_of(value)}, a_);
  }
};

TEST_F(TenantTest, AWriteThatWantsErrorsOnlyIsSilent) {
  set("k", "v");
  EXPECT_THAT(a_.heard(), IsEmpty());
  tenant_.execute({.id = 2, .op = Op::kSet, .key = "k", .value = bytes_of("v")}, a_);
  EXPECT_THAT(a_.heard(), ElementsAre("2: done"));
}

TEST_F(TenantTest, AGetWaitsForItsKeyAndWakesNobodyElse) {
  tenant_.execute({.id = 1, .op = Op::kGet, .timeout = 5s, .key = "k"}, a_);
  tenant_.execute({.id = 1, .op = Op::kGet, .timeout = 5s, .key = "other"}, b_);
  EXPECT_THAT(a_.heard(), IsEmpty());
  set("k", "v");
  EXPECT_THAT(a_.heard(), ElementsAre("1: value v"));
  EXPECT_THAT(b_.heard(), IsEmpty());
}

TEST_F(TenantTest, AWaitEndsWhenAllKeysExistAtOnce) {
  const std::vector<std::string_view> keys = {"x", "y"};
  tenant_.execute({.id = 1, .op = Op::kWait, .timeout = 5s, .keys = keys}, b_);
  set("x", "");
  tenant_.execute({.id = 2, .op = Op::kDeleteKey, .key = "x"}, a_);
  set("y", "");
  EXPECT_THAT(b_.heard(), IsEmpty());
  set("x", "");
  EXPECT_THAT(b_.heard(), ElementsAre("1: done"));
}

TEST_F(TenantTest, AWillIsExecutedWhenItsClientHasGoneAndOnlyThen) {
  const auto will = [this](std::string_view key, std::string_view value) {
    tenant_.execute(
        {.id = 7, .op = Op::kSetWill, .answer = Answer::kOnError, .key = key, .value = bytes_of(value)}, a_);
  };
  will("gone", "first");
  will("gone", "last");
  will("taken", "will");
  will("back", "will");
  will("back", "");
  tenant_.execute({.id = 1, .op = Op::kGet, .timeout = 5s, .key = "gone"}, b_);
  EXPECT_THAT(b_.heard(), IsEmpty());
  tenant_.execute({.op = Op::kSet, .answer = Answer::kOnError, .key = "taken"}, b_);  // empty, but there
  tenant_.execute_wills(a_);
  tenant_.forget(a_);
  EXPECT_THAT(b_.heard(), ElementsAre("1: value last"));
  tenant_.execute({.id = 2, .op = Op::kGet, .key = "taken"}, b_);
  tenant_.execute({.id = 3, .op = Op::kNumKeys}, b_);
  EXPECT_THAT(b_.heard(), ElementsAre("2: value ", "3: number 2"));
  tenant_.execute_wills(a_);
  EXPECT_THAT(a_.heard(), IsEmpty());
}

TEST_F(TenantTest, WillsAreFewAndShort) {
  const std::string long_value(kMaxWillSize + 1, 'x');
  tenant_.execute({.id = 1, .op = Op::kSetWill, .key = "k", .value = bytes_of(long_value)}, a_);
  tenant_.execute({.id = 2, .op = Op::kSetWill, .key = "", .value = bytes_of("v")}, a_);
  EXPECT_THAT(a_.heard(),
              ElementsAre(HasSubstr("has 4097 bytes; the limit is 4096"), HasSubstr("must not be empty")));
  for (std::size_t i = 0; i < kMaxWills; ++i) {
    tenant_.execute({.id = 3, .op = Op::kSetWill, .key = cat("k", i), .value = bytes_of("v")}, a_);
    EXPECT_THAT(a_.heard(), ElementsAre("3: done"));
  }
  tenant_.execute({.id = 4, .op = Op::kSetWill, .key = "k", .value = bytes_of("v")}, a_);
  EXPECT_THAT(a_.heard(), ElementsAre(HasSubstr("one too many")));
}

TEST_F(TenantTest, EveryKindOfWriteWakes) {
  const std::vector<std::string_view> keys = {"k"};
  const std::vector<ByteView> values = {bytes_of("1")};
  const std::vector<Request> writes = {
      {.id = 9, .op = Op::kSet, .key = "k", .value = values[0]},
      {.id = 9, .op = Op::kAppend, .key = "k", .value = values[0]},
      {.id = 9, .op = Op::kCompareSet, .key = "k", .value = values[0]},
      {.id = 9, .op = Op::kAdd, .key = "k", .amount = 1},
      {.id = 9, .op = Op::kMultiSet, .keys = keys, .values = values},
  };
  for (const Request& write : writes) {
    SCOPED_TRACE(op_name(write.op));
    tenant_.execute({.id = 1, .op = Op::kMultiGet, .timeout = 5s, .keys = keys}, b_);
    EXPECT_THAT(b_.heard(), IsEmpty());
    tenant_.execute(write, a_);
    EXPECT_THAT(b_.heard(), ElementsAre("1: list 1"));
    tenant_.execute({.id = 9, .op = Op::kDeleteKey, .key = "k"}, a_);
  }
}

TEST_F(TenantTest, ABarrierLetsARoundPassAndLeavesTwoKeys) {
  const auto come = [this](std::uint64_t id, Client& client) {
    tenant_.execute({.id = id, .op = Op::kBarrier, .timeout = 5s, .key = "meet", .amount = 2}, client);
  };
  for (int round = 0; round < 3; ++round) {
    come(1, a_);
    EXPECT_THAT(a_.heard(), IsEmpty());
    come(2, b_);
    EXPECT_THAT(a_.heard(), ElementsAre("1: done"));
    EXPECT_THAT(b_.heard(), ElementsAre("2: done"));
  }
  tenant_.execute({.id = 3, .op = Op::kListKeys}, a_);
  EXPECT_THAT(a_.heard(), ElementsAre(AnyOf("3: list meet meet/2", "3: list meet/2 meet")));
}

TEST_F(TenantTest, ABarrierThatRunsOutSaysHowManyCame) {
  for (std::uint64_t id : {1, 2}) {
    tenant_.execute({.id = id, .op = Op::kBarrier, .timeout = 5s, .key = "a/meet", .amount = 3}, a_);
  }
  clock_.advance(5s);
  tenant_.expire();
  EXPECT_THAT(a_.heard(), ElementsAre(HasSubstr("\"a/meet\" timed out: 2 of 3"), HasSubstr("2 of 3")));
}

TEST_F(TenantTest, ABarrierThatMakesNoSenseIsRefused) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  tenant_.execute({.id = 1, .op = Op::kBarrier, .key = "meet", .amount = 0}, a_);
  tenant_.execute({.id = 2, .op = Op::kBarrier, .key = "", .amount = 1}, a_);
  set("text", "x");
  tenant_.execute({.id = 3, .op = Op::kBarrier, .key = "text", .amount = 1}, a_);
  EXPECT_THAT(a_.heard(),
              ElementsAre(HasSubstr("size of 0"), HasSubstr("empty"), HasSubstr("needs a number")));
  // Far beyond what anyone means, and no overflow.
  set("far", cat(kMost - 1));
  tenant_.execute({.id = 4, .op = Op::kBarrier, .timeout = 5s, .key = "far", .amount = kMost - 1}, a_);
  EXPECT_THAT(a_.heard(), IsEmpty());
}

TEST_F(TenantTest, AQueueServesWhoCameFirstAndOnlyOne) {
  tenant_.execute({.id = 1, .op = Op::kQueuePop, .timeout = 5s, .key = "q"}, a_);
  tenant_.execute({.id = 2, .op = Op::kQueuePop, .timeout = 5s, .key = "q"}, b_);
  tenant_.execute({.op = Op::kQueuePush, .answer = Answer::kOnError, .key = "q", .value = bytes_of("1")}, a_);
  EXPECT_THAT(a_.heard(), ElementsAre("1: value 1"));
  EXPECT_THAT(b_.heard(), IsEmpty());
  tenant_.execute({.op = Op::kQueuePush, .answer = Answer::kOnError, .key = "q", .value = bytes_of("2")}, a_);
  EXPECT_THAT(b_.heard(), ElementsAre("2: value 2"));
  tenant_.execute({.id = 3, .op = Op::kQueuePop, .on_empty = Store::OnEmpty::kFail, .key = "q"}, a_);
  EXPECT_THAT(a_.heard(), ElementsAre(AllOf(HasSubstr("queue_empty"), HasSubstr("\"q\""))));
}

TEST_F(TenantTest, ATimeoutNamesWhatIsMissingAndHowLongItWas) {
  const std::vector<std::string_view> keys = {"x", "y"};
  set("x", "");
  tenant_.execute({.id = 1, .op = Op::kWait, .timeout = 5s, .keys = keys}, b_);
  tenant_.execute({.id = 2, .op = Op::kQueuePop, .timeout = 7s, .key = "q"}, b_);
  EXPECT_EQ(tenant_.next_deadline(), clock_.now() + 5s);
  clock_.advance(4999ms);
  tenant_.expire();
  EXPECT_THAT(b_.heard(), IsEmpty());
  clock_.advance(1ms);
  tenant_.expire();
  EXPECT_THAT(b_.heard(), ElementsAre(AllOf(HasSubstr("1: timeout"), HasSubstr("5.0 s"), HasSubstr("\"y\""),
                                            Not(HasSubstr("\"x\"")))));
  EXPECT_EQ(tenant_.next_deadline(), clock_.now() + 2s);
  clock_.advance(2s);
  tenant_.expire();
  EXPECT_THAT(b_.heard(), ElementsAre(AllOf(HasSubstr("2: timeout"), HasSubstr("\"q\""))));
  EXPECT_EQ(tenant_.next_deadline(), std::nullopt);
}

TEST_F(TenantTest, NobodyAnswersAClientThatHasGone) {
  tenant_.execute({.id = 1, .op = Op::kGet, .timeout = 5s, .key = "k"}, b_);
  tenant_.execute({.id = 2, .op = Op::kQueuePop, .timeout = 5s, .key = "q"}, b_);
  tenant_.execute({.id = 3, .op = Op::kGet, .timeout = 5s, .key = "k"}, a_);
  tenant_.forget(b_);
  set("k", "v");
  tenant_.execute({.op = Op::kQueuePush, .answer = Answer::kOnError, .key = "q", .value = bytes_of("1")}, a_);
  EXPECT_THAT(b_.heard(), IsEmpty());
  EXPECT_THAT(a_.heard(), ElementsAre("3: value v"));
  tenant_.execute({.id = 4, .op = Op::kQueueLen, .key = "q"}, a_);
  EXPECT_THAT(a_.heard(), ElementsAre("4: number 1"));
}

TEST_F(TenantTest, ACancelledPopTakesNothing) {
  tenant_.execute({.id = 1, .op = Op::kQueuePop, .timeout = 5s, .key = "q"}, b_);
  tenant_.execute({.id = 2, .op = Op::kCancel, .target = 1}, a_);  // not a's
  tenant_.execute({.id = 3, .op = Op::kCancel, .target = 1}, b_);
  tenant_.execute({.id = 4, .op = Op::kCancel, .target = 1}, b_);  // again
  tenant_.execute({.op = Op::kQueuePush, .answer = Answer::kOnError, .key = "q", .value = bytes_of("1")}, a_);
  EXPECT_THAT(b_.heard(), IsEmpty());
  EXPECT_EQ(tenant_.next_deadline(), std::nullopt);
}

// A client that does not keep to the protocol harms nobody but itself.
TEST_F(TenantTest, OneIdForTwoRequestsIsAnsweredTwice) {
  tenant_.execute({.id = 1, .op = Op::kGet, .timeout = 5s, .key = "k"}, b_);
  tenant_.execute({.id = 1, .op = Op::kGet, .timeout = 6s, .key = "l"}, b_);
  set("l", "2");
  set("k", "1");
  EXPECT_THAT(b_.heard(), ElementsAre("1: value 2", "1: value 1"));
}

TEST_F(TenantTest, BeyondItsMemoryAWriteIsRefusedAndTheRestGoesOn) {
  const std::string large(600U << 10, 'x');
  set("first", large);
  EXPECT_THAT(a_.heard(), IsEmpty());
  set("second", large);
  EXPECT_THAT(a_.heard(), ElementsAre(HasSubstr("0: ")));
  set("small", "v");
  tenant_.execute({.id = 1, .op = Op::kNumKeys}, a_);
  EXPECT_THAT(a_.heard(), ElementsAre("1: number 2"));
}

TEST_F(TenantTest, WaitersCountAsMemoryInFlight) {
  EXPECT_FALSE(tenant_.over_memory());
  for (std::uint64_t id = 1; id <= 4000; ++id) {
    tenant_.execute({.id = id, .op = Op::kGet, .timeout = 5s, .key = "k"}, b_);
  }
  EXPECT_TRUE(tenant_.over_memory());
  tenant_.forget(b_);
  EXPECT_FALSE(tenant_.over_memory());
  tenant_.charge(2U << 20);
  EXPECT_TRUE(tenant_.over_memory());
}

TEST_F(TenantTest, AnAnswerThatWouldBeTooLargeIsAnError) {
  Tenant large(TenantOptions{.job_id = "job"}, clock_);
  const std::string value(kMaxValueSize, 'x');
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) names.push_back(cat("k", i));
  for (const std::string& name : names) {
    large.execute({.op = Op::kSet, .answer = Answer::kOnError, .key = name, .value = bytes_of(value)}, a_);
  }
  const std::vector<std::string_view> keys(names.begin(), names.end());
  large.execute({.id = 1, .op = Op::kMultiGet, .timeout = 5s, .keys = keys}, a_);
  EXPECT_THAT(a_.heard(), ElementsAre(AllOf(HasSubstr("limit_exceeded"), HasSubstr("multi_get"))));
}

}  // namespace
}  // namespace lockstep::store
