#include "lockstep/store/key_values.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using lockstep::testing::FailureIs;
using lockstep::testing::IsOkAnd;
using lockstep::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::UnorderedElementsAre;

using Names = std::vector<std::string>;

std::string value_of(const KeyValues& state, std::string_view key) {
  const auto value = state.get(key);
  return value ? std::string(text_of(*value)) : "<missing>";
}

TEST(KeyValues, KeepsWhatWasSetLast) {
  KeyValues state;
  EXPECT_EQ(state.get("key"), std::nullopt);
  ASSERT_OK(state.set("key", bytes_of("one")));
  ASSERT_OK(state.set("key", bytes_of("a longer value than before")));
  EXPECT_EQ(value_of(state, "key"), "a longer value than before");
  ASSERT_OK(state.set("key", {}));
  EXPECT_EQ(value_of(state, "key"), "");
  EXPECT_TRUE(state.contains("key"));
}

TEST(KeyValues, CompareSetAnswersEveryCase) {
  struct Case {
    std::string before;  // "-": the key is missing
    std::string expected, desired, answer, after;
    bool changed;
  };
  for (const Case& c : std::vector<Case>{
           {"-", "", "new", "new", "new", true},
           {"-", "", "", "", "", true},
           {"-", "other", "new", "other", "<missing>", false},
           {"old", "old", "new", "new", "new", true},
           {"old", "old", "old", "old", "old", true},
           {"old", "other", "new", "old", "old", false},
           {"old", "", "new", "old", "old", false},
           {"", "", "new", "new", "new", true},
           {"", "other", "new", "", "", false},
       }) {
    SCOPED_TRACE(c.before + "/" + c.expected + "/" + c.desired);
    KeyValues state;
    if (c.before != "-") {
      ASSERT_OK(state.set("key", bytes_of(c.before)));
    }
    ASSERT_OK_AND_ASSIGN(const auto compared,
                         state.compare_set("key", bytes_of(c.expected), bytes_of(c.desired)));
    EXPECT_EQ(text_of(compared.value), c.answer);
    EXPECT_EQ(compared.changed, c.changed);
    EXPECT_EQ(value_of(state, "key"), c.after);
  }
}

TEST(KeyValues, AddsToTheDecimalText) {
  KeyValues state;
  EXPECT_THAT(state.add("n", 5), IsOkAnd(5));
  EXPECT_THAT(state.add("n", -7), IsOkAnd(-2));
  EXPECT_EQ(value_of(state, "n"), "-2");
  EXPECT_THAT(state.add("zero", 0), IsOkAnd(0));
  EXPECT_EQ(value_of(state, "zero"), "0");
  ASSERT_OK(state.set("padded", bytes_of("007")));
  EXPECT_THAT(state.add("padded", 1), IsOkAnd(8));
}

TEST(KeyValues, AddRefusesWhatIsNoNumberAndLeavesIt) {
  for (const std::string text : {"", "-", "+1", " 1", "1 ", "12abc", "0x10", "1e3", "9223372036854775808"}) {
    SCOPED_TRACE(text);
    KeyValues state;
    ASSERT_OK(state.set("n", bytes_of(text)));
    EXPECT_THAT(state.add("n", 1), StatusIs(Code::kInvalid, HasSubstr("\"n\"")));
    EXPECT_EQ(value_of(state, "n"), text);
  }
}

TEST(KeyValues, AddRefusesAnOverflowAndLeavesTheValue) {
  KeyValues state;
  ASSERT_OK(state.add("max", INT64_MAX));
  EXPECT_THAT(state.add("max", 1), StatusIs(Code::kInvalid));
  EXPECT_EQ(value_of(state, "max"), "9223372036854775807");
  ASSERT_OK(state.add("min", INT64_MIN));
  EXPECT_THAT(state.add("min", -1), StatusIs(Code::kInvalid));
  EXPECT_EQ(value_of(state, "min"), "-9223372036854775808");
}

TEST(KeyValues, ChecksAndNamesMissingKeys) {
  KeyValues state;
  ASSERT_OK(state.set("a", {}));
  EXPECT_TRUE(state.check(Names{}));
  EXPECT_TRUE(state.check(Names{"a", "a"}));
  EXPECT_FALSE(state.check(Names{"a", "b"}));
  EXPECT_THAT(state.missing(Names{"c", "a", "b"}), ElementsAre("c", "b"));
}

TEST(KeyValues, DeletesOnce) {
  KeyValues state;
  ASSERT_OK(state.set("a", bytes_of("1")));
  EXPECT_TRUE(state.delete_key("a"));
  EXPECT_FALSE(state.delete_key("a"));
  EXPECT_EQ(state.num_keys(), 0);
  EXPECT_EQ(state.bytes(), 0U);
}

TEST(KeyValues, AppendMakesTheKeyAndAddsToItsEnd) {
  KeyValues state;
  ASSERT_OK(state.append("a", bytes_of("one")));
  ASSERT_OK(state.append("a", bytes_of("")));
  ASSERT_OK(state.append("a", bytes_of("two")));
  EXPECT_EQ(value_of(state, "a"), "onetwo");
  ASSERT_OK(state.append("empty", {}));
  EXPECT_TRUE(state.contains("empty"));
}

TEST(KeyValues, MultiSetIsAllOrNothing) {
  KeyValues state;
  ASSERT_OK(state.set("a", bytes_of("old")));
  const std::vector<ByteView> two = {bytes_of("1"), bytes_of("2")};
  EXPECT_THAT(state.multi_set(Names{"a"}, two), StatusIs(Code::kInvalid, HasSubstr("1 keys and 2 values")));
  EXPECT_THAT(state.multi_set(Names{"a", ""}, two), StatusIs(Code::kInvalid));
  const Buffer too_big(kMaxValueSize + 1);
  EXPECT_THAT(state.multi_set(Names{"a", "b"}, std::vector<ByteView>{bytes_of("1"), too_big}),
              FailureIs(Failure::kLimitExceeded));
  EXPECT_EQ(value_of(state, "a"), "old");
  EXPECT_EQ(state.num_keys(), 1);

  ASSERT_OK(state.multi_set(Names{"a", "b"}, two));
  EXPECT_EQ(value_of(state, "a"), "1");
  EXPECT_EQ(value_of(state, "b"), "2");
  ASSERT_OK(state.multi_set(Names{"c", "c"}, two));
  EXPECT_EQ(value_of(state, "c"), "2");
  ASSERT_OK(state.multi_set(Names{}, {}));
  EXPECT_THAT(state.list_keys(), UnorderedElementsAre("a", "b", "c"));
}

TEST(KeyValues, QueuesAreFirstInFirstOutAndNoKeys) {
  KeyValues state;
  EXPECT_EQ(state.queue_pop("q"), std::nullopt);
  EXPECT_EQ(state.queue_len("q"), 0);
  ASSERT_OK(state.queue_push("q", bytes_of("1")));
  ASSERT_OK(state.queue_push("q", {}));
  EXPECT_EQ(state.queue_len("q"), 2);
  EXPECT_FALSE(state.contains("q"));
  EXPECT_EQ(state.num_keys(), 0);
  EXPECT_FALSE(state.delete_key("q"));
  EXPECT_THAT(state.queue_pop("q"), Optional(Eq(buffer_of("1"))));
  EXPECT_THAT(state.queue_pop("q"), Optional(IsEmpty()));
  EXPECT_EQ(state.queue_pop("q"), std::nullopt);
  EXPECT_EQ(state.bytes(), 0U);
}

TEST(KeyValues, ChecksTheSizeOfKeysAndValuesEverywhere) {
  KeyValues state;
  const std::string longest(kMaxKeySize, 'k');
  const std::string too_long(kMaxKeySize + 1, 'k');
  const Buffer biggest(kMaxValueSize);
  const Buffer too_big(kMaxValueSize + 1);
  ASSERT_OK(state.set(longest, biggest));
  for (const std::string& key : {std::string(), too_long}) {
    EXPECT_THAT(state.set(key, {}), FailureIs(Failure::kLimitExceeded));
    EXPECT_THAT(state.compare_set(key, {}, {}), FailureIs(Failure::kLimitExceeded));
    EXPECT_THAT(state.add(key, 1), FailureIs(Failure::kLimitExceeded));
    EXPECT_THAT(state.append(key, {}), FailureIs(Failure::kLimitExceeded));
    EXPECT_THAT(state.queue_push(key, {}), FailureIs(Failure::kLimitExceeded));
  }
  EXPECT_THAT(state.set("a", too_big), StatusIs(Code::kInvalid, HasSubstr("8.0 MiB")));
  EXPECT_THAT(state.compare_set("a", {}, too_big), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(state.compare_set("a", too_big, {}), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(state.append(longest, bytes_of("x")), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(state.queue_push("a", too_big), FailureIs(Failure::kLimitExceeded));
  EXPECT_EQ(state.get(longest)->size(), kMaxValueSize);
  EXPECT_EQ(state.num_keys(), 1);
}

TEST(KeyValues, HoldsItsOwnLimits) {
  KeyValues state(KeyValues::Limits{.max_entries = 2, .max_bytes = 1000});
  ASSERT_OK(state.set("a", bytes_of("1")));
  ASSERT_OK(state.queue_push("q", bytes_of("1")));
  EXPECT_THAT(state.set("b", {}), StatusIs(Code::kInvalid, HasSubstr("the store is full")));
  EXPECT_THAT(state.queue_push("q", {}), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(state.multi_set(Names{"a", "b"}, std::vector<ByteView>(2)), FailureIs(Failure::kLimitExceeded));
  EXPECT_EQ(value_of(state, "a"), "1");
  ASSERT_OK(state.queue_pop("q") ? Status() : Status::internal("the queue is empty"));
  ASSERT_OK(state.set("b", {}));

  const Buffer big(900);
  EXPECT_THAT(state.set("a", big), FailureIs(Failure::kLimitExceeded));
  EXPECT_THAT(state.append("a", big), FailureIs(Failure::kLimitExceeded));
  EXPECT_EQ(value_of(state, "a"), "1");
  ASSERT_OK(state.set("a", Buffer(700)));
  // A change that makes it smaller is never refused.
  ASSERT_OK(state.multi_set(Names{"a", "b"}, std::vector<ByteView>(2)));
  EXPECT_EQ(state.bytes(), 2 * (1 + KeyValues::kEntryOverhead));
}

TEST(KeyValues, NamesTheLimitsThatItHasAndNoOthers) {
  const auto refusal = [](const KeyValues::Limits& limits) {
    KeyValues state(limits);
    EXPECT_OK(state.set("a", {}));
    return std::string(state.set("b", {}).message());
  };
  EXPECT_THAT(refusal({.max_entries = 1}), EndsWith("its limit is 1 entries"));
  EXPECT_THAT(refusal({.max_bytes = 128}), EndsWith("its limit is 128 B"));
  EXPECT_THAT(refusal({.max_entries = 1, .max_bytes = 128}), EndsWith("its limit is 1 entries and 128 B"));
}

TEST(KeyValues, CountsItsBytesThroughEveryChange) {
  KeyValues state;
  ASSERT_OK(state.set("a", bytes_of("12345")));
  ASSERT_OK(state.append("a", bytes_of("678")));
  ASSERT_OK(state.add("n", 99));
  ASSERT_OK(state.add("n", 1));
  ASSERT_OK(state.compare_set("a", bytes_of("12345678"), bytes_of("x")));
  ASSERT_OK(state.multi_set(Names{"a", "bb"}, std::vector<ByteView>{bytes_of("xy"), bytes_of("z")}));
  ASSERT_OK(state.queue_push("q", bytes_of("7")));
  // a=xy n=100 bb=z q=[7]
  EXPECT_EQ(state.bytes(), 4 * KeyValues::kEntryOverhead + (1 + 2) + (1 + 3) + (2 + 1) + (1 + 1));
  EXPECT_EQ(state.entries(), 4U);
}

TEST(KeyValues, VisitsEverythingInTheOrderOfEachQueue) {
  KeyValues state;
  ASSERT_OK(state.set("a", bytes_of("1")));
  ASSERT_OK(state.queue_push("q", bytes_of("first")));
  ASSERT_OK(state.queue_push("q", bytes_of("second")));
  Names seen;
  state.visit([&](auto name, auto value) { seen.push_back(cat("key ", name, "=", text_of(value))); },
              [&](auto name, auto value) { seen.push_back(cat("queue ", name, "=", text_of(value))); });
  EXPECT_THAT(seen, ElementsAre("key a=1", "queue q=first", "queue q=second"));
}

}  // namespace
}  // namespace lockstep::store
