#include "lockstep/testing/store_conformance.h"

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/testing/pattern.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {

using store::kMaxCallSize;
using store::kMaxKeySize;
using store::kMaxKeysPerCall;
using store::kMaxValueSize;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

namespace {

using Names = std::vector<std::string>;
using OnEmpty = Store::OnEmpty;
constexpr Duration kPatience = std::chrono::seconds(60);  // ends a test that hangs

}  // namespace

void run_threads(int count, const std::function<void(int)>& body) {
  std::latch start(count);
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      body(i);
    });
  }
}

MakeStoreFamily for_answers(MakeStoreFamily make) { return make; }

StoreConformance::StoreConformance()
    : family_(GetParam()(StoreOptions{.timeout = kPatience})), handle_(family_->open()), store_(*handle_) {}
StoreConformance::~StoreConformance() = default;

TEST_P(StoreConformance, GetGivesWhatWasSetLast) {
  ASSERT_OK(store_.set("key", bytes_of("one")));
  EXPECT_THAT(store_.get("key"), holds("one"));
  ASSERT_OK(store_.set("key", bytes_of("two, which is longer")));
  EXPECT_THAT(store_.get("key"), holds("two, which is longer"));
  ASSERT_OK(store_.set("key", {}));
  EXPECT_THAT(store_.get("key"), holds(""));
}

TEST_P(StoreConformance, KeysAndValuesAreAnyBytes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  ASSERT_OK(store_.set(all, bytes_of(all)));
  EXPECT_THAT(store_.get(all), holds(all));
  EXPECT_THAT(store_.list_keys(), IsOkAnd(ElementsAre(all)));
  const std::string nul("a\0b", 3);
  ASSERT_OK(store_.append(all, bytes_of(nul)));
  EXPECT_THAT(store_.get(all), holds(all + nul));
  EXPECT_THAT(store_.compare_set(nul, {}, bytes_of(nul)), holds(nul));
  EXPECT_THAT(store_.check(Names{"a"}), IsOkAnd(false));
  ASSERT_OK(store_.queue_push(nul, bytes_of(nul)));
  EXPECT_THAT(store_.queue_pop(nul), holds(nul));
}

TEST_P(StoreConformance, HandlesShareTheData) {
  const std::unique_ptr<Store> other = family_->open();
  ASSERT_OK(store_.set("key", bytes_of("one")));
  EXPECT_THAT(other->get("key"), holds("one"));
  EXPECT_THAT(other->add("n", 2), IsOkAnd(2));
  EXPECT_THAT(store_.add("n", 3), IsOkAnd(5));
  EXPECT_THAT(other->delete_key("key"), IsOkAnd(true));
  EXPECT_THAT(store_.check(Names{"key"}), IsOkAnd(false));
  ASSERT_OK(store_.queue_push("q", bytes_of("item")));
  EXPECT_THAT(other->queue_pop("q"), holds("item"));
}

TEST_P(StoreConformance, HoldsTheLargestKeyAndValue) {
  const std::string key(kMaxKeySize - 100, 'k');  // a prefix takes its part
  const Buffer value = pattern(kMaxValueSize, 1);
  ASSERT_OK(store_.set(key, value));
  ASSERT_OK_AND_ASSIGN(const Buffer got, store_.get(key));
  EXPECT_TRUE(text_of(got) == text_of(value));
  ASSERT_OK(store_.queue_push(key, value));
  ASSERT_OK_AND_ASSIGN(const Buffer popped, store_.queue_pop(key));
  EXPECT_TRUE(text_of(popped) == text_of(value));
}

TEST_P(StoreConformance, RefusesWhatIsTooLargeAndStaysUsable) {
  const Buffer too_big(kMaxValueSize + 1);
  const auto refused = FailureIs(Failure::kLimitExceeded);
  EXPECT_THAT(store_.set("key", too_big), refused);
  EXPECT_THAT(store_.set("key", too_big), StatusIs(Code::kInvalid, HasSubstr("8.0 MiB")));
  EXPECT_THAT(store_.compare_set("key", {}, too_big), refused);
  EXPECT_THAT(store_.compare_set("key", too_big, {}), refused);
  EXPECT_THAT(store_.append("key", too_big), refused);
  EXPECT_THAT(store_.queue_push("key", too_big), refused);
  EXPECT_THAT(store_.multi_set(Names{"other", "key"}, std::vector<Buffer>{Buffer(1), too_big}), refused);
  EXPECT_THAT(store_.check(Names{"key"}), IsOkAnd(false));
  EXPECT_THAT(store_.check(Names{"other"}), IsOkAnd(false));
  EXPECT_THAT(store_.queue_len("key"), IsOkAnd(0));

  ASSERT_OK(store_.set("key", Buffer(kMaxValueSize)));
  EXPECT_THAT(store_.append("key", bytes_of("x")), refused);
  EXPECT_THAT(store_.get("key"), IsOkAnd(SizeIs(kMaxValueSize)));
}

TEST_P(StoreConformance, RefusesCallsOnSeveralKeysThatAreTooLargeTogether) {
  const auto refused = AllOf(StatusIs(Code::kInvalid), FailureIs(Failure::kLimitExceeded));
  const Names keys = {"a", "b", "c", "d", "e"};
  const std::vector<Buffer> values(keys.size(), Buffer(kMaxValueSize));
  EXPECT_THAT(store_.multi_set(keys, values), refused);
  EXPECT_THAT(store_.num_keys(), IsOkAnd(0));
  Names many(kMaxKeysPerCall, "a");
  if (!kSanitized) {  // watched, so many bytes take minutes
    for (std::size_t i = 0; i < keys.size(); ++i) ASSERT_OK(store_.set(keys[i], values[i]));
    EXPECT_THAT(store_.multi_get(keys), refused);
    EXPECT_THAT(store_.multi_get(Names{"a", "b", "c"}), IsOkAnd(SizeIs(3)));
    EXPECT_THAT(store_.check(many), IsOkAnd(true));
    EXPECT_OK(store_.wait(many));
  }
  many.emplace_back("a");
  EXPECT_THAT(store_.check(many), refused);
  EXPECT_THAT(store_.wait(many), refused);
  EXPECT_THAT(store_.multi_get(many), refused);
  EXPECT_THAT(store_.multi_set(many, std::vector<Buffer>(many.size())), refused);
}

TEST_P(StoreConformance, RefusesToListMoreKeysThanAnAnswerHolds) {
  constexpr std::size_t kSize = kMaxKeySize - 100, kBatch = 15'000;  // a prefix takes its part
  const std::size_t most = kSanitized ? 1 : kMaxCallSize;            // watched, so many bytes take minutes
  std::size_t count = 0;
  while (count * kSize <= most) {
    Names keys;
    for (std::size_t i = 0; i < kBatch; ++i, ++count) {
      keys.push_back(cat(count, "/"));
      keys.back().resize(kSize, 'k');
    }
    ASSERT_OK(store_.multi_set(keys, std::vector<Buffer>(kBatch)));
  }
  if (count * kSize > kMaxCallSize) {
    EXPECT_THAT(store_.list_keys(), FailureIs(Failure::kLimitExceeded));
  } else {
    EXPECT_THAT(store_.list_keys(), IsOkAnd(SizeIs(count)));
  }
}

TEST_P(StoreConformance, RefusesAKeyThatIsEmptyOrTooLongInEveryCall) {
  const auto refused = FailureIs(Failure::kLimitExceeded);
  for (const std::string& key : {std::string(), std::string(kMaxKeySize + 1, 'k')}) {
    SCOPED_TRACE(cat("a key of ", key.size(), " bytes"));
    const Names keys = {"ok", key};
    EXPECT_THAT(store_.set(key, {}), refused);
    EXPECT_THAT(store_.get(key), refused);
    EXPECT_THAT(store_.compare_set(key, {}, {}), refused);
    EXPECT_THAT(store_.add(key, 1), refused);
    EXPECT_THAT(store_.check(keys), refused);
    EXPECT_THAT(store_.wait(keys), refused);
    EXPECT_THAT(store_.delete_key(key), refused);
    EXPECT_THAT(store_.append(key, {}), refused);
    EXPECT_THAT(store_.multi_get(keys), refused);
    EXPECT_THAT(store_.multi_set(keys, std::vector<Buffer>(2)), refused);
    EXPECT_THAT(store_.queue_push(key, {}), refused);
    EXPECT_THAT(store_.queue_pop(key), refused);
    EXPECT_THAT(store_.queue_len(key), refused);
  }
  EXPECT_THAT(store_.num_keys(), IsOkAnd(0));
  EXPECT_OK(store_.set("ok", {}));
}

TEST_P(StoreConformance, CompareSetAnswersEveryCase) {
  struct Case {
    const char* before;  // null: the key is missing
    std::string expected, desired, answer;
    const char* after;
  };
  int i = 0;
  for (const Case& c : std::vector<Case>{
           {nullptr, "", "new", "new", "new"},
           {nullptr, "", "", "", ""},
           {nullptr, "other", "new", "other", nullptr},
           {"old", "old", "new", "new", "new"},
           {"old", "other", "new", "old", "old"},
           {"old", "", "new", "old", "old"},
           {"", "", "new", "new", "new"},
           {"", "other", "new", "", ""},
       }) {
    const std::string key = cat("key", i++);
    SCOPED_TRACE(key);
    if (c.before != nullptr) {
      ASSERT_OK(store_.set(key, bytes_of(c.before)));
    }
    EXPECT_THAT(store_.compare_set(key, bytes_of(c.expected), bytes_of(c.desired)), holds(c.answer));
    EXPECT_THAT(store_.check(Names{key}), IsOkAnd(c.after != nullptr));
    if (c.after != nullptr) {
      EXPECT_THAT(store_.get(key), holds(c.after));
    }
  }
}

TEST_P(StoreConformance, AddCountsInDecimalText) {
  EXPECT_THAT(store_.add("n", 5), IsOkAnd(5));
  EXPECT_THAT(store_.get("n"), holds("5"));
  EXPECT_THAT(store_.add("n", -7), IsOkAnd(-2));
  EXPECT_THAT(store_.get("n"), holds("-2"));
  EXPECT_THAT(store_.add("zero", 0), IsOkAnd(0));
  EXPECT_THAT(store_.check(Names{"zero"}), IsOkAnd(true));
  ASSERT_OK(store_.set("n", bytes_of("40")));
  EXPECT_THAT(store_.add("n", 2), IsOkAnd(42));
  EXPECT_THAT(store_.add("n", INT64_MAX - 42), IsOkAnd(INT64_MAX));
}

TEST_P(StoreConformance, AddRefusesWhatIsNoNumberAndStaysUsable) {
  for (const std::string text : {"", "-", "text", " 1", "12abc", "9223372036854775808"}) {
    SCOPED_TRACE(text);
    ASSERT_OK(store_.set("n", bytes_of(text)));
    EXPECT_THAT(store_.add("n", 1), StatusIs(Code::kInvalid, HasSubstr("\"")));
    EXPECT_THAT(store_.get("n"), holds(text));
  }
  ASSERT_OK(store_.set("n", bytes_of("9223372036854775807")));
  EXPECT_THAT(store_.add("n", 1), StatusIs(Code::kInvalid));
  EXPECT_THAT(store_.get("n"), holds("9223372036854775807"));
}

TEST_P(StoreConformance, CheckIsTrueIfAllExist) {
  ASSERT_OK(store_.set("a", {}));
  EXPECT_THAT(store_.check(Names{}), IsOkAnd(true));
  EXPECT_THAT(store_.check(Names{"a", "a"}), IsOkAnd(true));
  EXPECT_THAT(store_.check(Names{"a", "b"}), IsOkAnd(false));
}

TEST_P(StoreConformance, DeleteSaysWhetherThereWasAKey) {
  EXPECT_THAT(store_.delete_key("a"), IsOkAnd(false));
  ASSERT_OK(store_.set("a", bytes_of("1")));
  EXPECT_THAT(store_.delete_key("a"), IsOkAnd(true));
  EXPECT_THAT(store_.delete_key("a"), IsOkAnd(false));
  EXPECT_THAT(store_.check(Names{"a"}), IsOkAnd(false));
  EXPECT_THAT(store_.add("a", 1), IsOkAnd(1));
}

TEST_P(StoreConformance, CountsAndListsKeysAndNothingElse) {
  EXPECT_THAT(store_.num_keys(), IsOkAnd(0));
  EXPECT_THAT(store_.list_keys(), IsOkAnd(IsEmpty()));
  ASSERT_OK(store_.set("a", bytes_of("1")));
  ASSERT_OK(store_.set("a", bytes_of("2")));
  ASSERT_OK(store_.add("b/c", 1));
  ASSERT_OK(store_.append("/d", {}));
  ASSERT_OK(store_.queue_push("queue", bytes_of("1")));
  EXPECT_THAT(store_.num_keys(), IsOkAnd(3));
  EXPECT_THAT(store_.list_keys(), IsOkAnd(UnorderedElementsAre("a", "b/c", "/d")));
  ASSERT_OK(store_.delete_key("a"));
  EXPECT_THAT(store_.num_keys(), IsOkAnd(2));
}

TEST_P(StoreConformance, AppendMakesTheKeyAndAddsToItsEnd) {
  ASSERT_OK(store_.append("a", bytes_of("one")));
  ASSERT_OK(store_.append("a", {}));
  ASSERT_OK(store_.append("a", bytes_of("two")));
  EXPECT_THAT(store_.get("a"), holds("onetwo"));
  ASSERT_OK(store_.append("empty", {}));
  EXPECT_THAT(store_.get("empty"), holds(""));
}

TEST_P(StoreConformance, MultiSetAndMultiGetKeepTheOrder) {
  ASSERT_OK(store_.multi_set(Names{"a", "b"}, std::vector<Buffer>{buffer_of("1"), buffer_of("2")}));
  EXPECT_THAT(store_.multi_get(Names{"b", "a", "b"}),
              IsOkAnd(ElementsAre(HoldsText("2"), HoldsText("1"), HoldsText("2"))));
  ASSERT_OK(store_.multi_set(Names{"c", "c"}, std::vector<Buffer>{buffer_of("1"), buffer_of("2")}));
  EXPECT_THAT(store_.get("c"), holds("2"));
  ASSERT_OK(store_.multi_set(Names{}, std::vector<Buffer>{}));
  EXPECT_THAT(store_.multi_get(Names{}), IsOkAnd(IsEmpty()));
}

TEST_P(StoreConformance, MultiSetNeedsAsManyValuesAsKeys) {
  EXPECT_THAT(store_.multi_set(Names{"a", "b"}, std::vector<Buffer>(1)),
              StatusIs(Code::kInvalid, HasSubstr("2 keys and 1 values")));
  EXPECT_THAT(store_.num_keys(), IsOkAnd(0));
}

TEST_P(StoreConformance, MultiSetIsSeenAsOneStep) {
  const Names keys = {"a", "b", "c"};
  ASSERT_OK(store_.multi_set(keys, std::vector<Buffer>(3, buffer_of("0"))));
  std::atomic<bool> done = false;
  run_threads(3, [&](int i) {
    const std::unique_ptr<Store> own = family_->open();
    if (i == 0) {
      for (int round = 1; round <= 50; ++round) {
        EXPECT_OK(own->multi_set(keys, std::vector<Buffer>(3, buffer_of(cat(round)))));
      }
      done = true;
    }
    while (!done) {
      const Result<std::vector<Buffer>> values = own->multi_get(keys);
      ASSERT_OK(values);
      EXPECT_THAT(*values, ::testing::Each((*values)[0]));
    }
  });
}

TEST_P(StoreConformance, QueuesAreFirstInFirstOut) {
  EXPECT_THAT(store_.queue_len("q"), IsOkAnd(0));
  for (const char* item : {"1", "", "3"}) ASSERT_OK(store_.queue_push("q", bytes_of(item)));
  EXPECT_THAT(store_.queue_len("q"), IsOkAnd(3));
  EXPECT_THAT(store_.queue_pop("q"), holds("1"));
  EXPECT_THAT(store_.queue_pop("q", OnEmpty::kFail), holds(""));
  EXPECT_THAT(store_.queue_pop("q"), holds("3"));
  EXPECT_THAT(store_.queue_len("q"), IsOkAnd(0));
}

TEST_P(StoreConformance, PopOfAnEmptyQueueFailsAtOnceWhenAsked) {
  EXPECT_THAT(store_.queue_pop("q", OnEmpty::kFail), FailureIs(Failure::kQueueEmpty));
  EXPECT_THAT(store_.queue_pop("q", OnEmpty::kFail), StatusIs(Code::kTimeout, HasSubstr("q\" is empty")));
  ASSERT_OK(store_.queue_push("q", bytes_of("1")));
  EXPECT_THAT(store_.queue_pop("q", OnEmpty::kFail), holds("1"));
}

TEST_P(StoreConformance, AQueueAndAKeyOfOneNameDoNotMeet) {
  ASSERT_OK(store_.queue_push("name", bytes_of("queued")));
  EXPECT_THAT(store_.check(Names{"name"}), IsOkAnd(false));
  EXPECT_THAT(store_.delete_key("name"), IsOkAnd(false));
  ASSERT_OK(store_.set("name", bytes_of("value")));
  EXPECT_THAT(store_.queue_len("name"), IsOkAnd(1));
  EXPECT_THAT(store_.delete_key("name"), IsOkAnd(true));
  EXPECT_THAT(store_.queue_pop("name"), holds("queued"));
}

TEST_P(StoreConformance, ACloneIsAnotherHandleOnTheSameData) {
  ASSERT_OK(store_.set("a", bytes_of("1")));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Store> clone, store_.clone());
  EXPECT_THAT(clone->get("a"), holds("1"));
  ASSERT_OK(clone->set("a", bytes_of("2")));
  EXPECT_THAT(store_.get("a"), holds("2"));
  EXPECT_EQ(clone->timeout(), store_.timeout());
  clone->set_timeout(std::chrono::seconds(1));
  EXPECT_EQ(store_.timeout(), kPatience);
  handle_.reset();
  EXPECT_THAT(clone->get("a"), holds("2"));
}

TEST_P(StoreConformance, SaysWhatItIs) {
  EXPECT_THAT(store_.description(), HasSubstr("Store"));
  EXPECT_EQ(&store_.clock(), &Clock::steady());
}

TEST_P(StoreConformance, HoldsManyKeys) {
  constexpr int kBatches = kSanitized ? 3 : 20, kBatch = 5000;
  const std::vector<Buffer> values(kBatch, buffer_of("value"));
  for (int batch = 0; batch < kBatches; ++batch) {
    Names keys;
    for (int i = 0; i < kBatch; ++i) keys.push_back(cat("key/", batch, "/", i));
    ASSERT_OK(store_.multi_set(keys, values));
    EXPECT_THAT(store_.check(keys), IsOkAnd(true));
  }
  EXPECT_THAT(store_.num_keys(), IsOkAnd(kBatches * kBatch));
  EXPECT_THAT(store_.list_keys(), IsOkAnd(SizeIs(kBatches * kBatch)));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreConformance);

}  // namespace lockstep::testing
