#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/store_conformance.h"

namespace lockstep::testing {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

namespace {

using Names = std::vector<std::string>;
using OnEmpty = Store::OnEmpty;

}  // namespace

MakeStoreFamily for_waits(MakeStoreFamily make) { return make; }

StoreWaitConformance::StoreWaitConformance()
    : family_(GetParam()(StoreOptions{.timeout = 60s})),
      fake_family_(GetParam()(StoreOptions{.timeout = 5s, .clock = &clock_})),
      handle_(family_->open()),
      fake_handle_(fake_family_->open()),
      store_(*handle_),
      fake_store_(*fake_handle_) {}
StoreWaitConformance::~StoreWaitConformance() = default;

Duration StoreWaitConformance::time_of(const std::function<void()>& call) {
  const base::TimePoint start = clock_.now();
  base::TimePoint end;
  std::atomic<bool> done = false;
  std::jthread caller([&] {
    call();
    end = clock_.now();
    done = true;
  });
  // It moves only while someone waits on it, so that an answer on its way is not cut off.
  for (std::uint64_t seen = clock_.waits(); !done; std::this_thread::yield()) {
    if (clock_.waits() == seen) continue;
    seen = clock_.waits();
    clock_.advance(50ms);
  }
  caller.join();
  return end - start;
}

// Who waits, and how the key comes: in every round the two race, so that the waiter is met before it has
// asked, while it asks and when it sleeps.
TEST_P(StoreWaitConformance, EveryWayToMakeAKeyReleasesItsWaiter) {
  using Make = std::function<Status(Store&, const std::string& key)>;
  const std::vector<std::pair<std::string, Make>> ways = {
      {"set", [](Store& s, const std::string& key) { return s.set(key, bytes_of("1")); }},
      {"append", [](Store& s, const std::string& key) { return s.append(key, bytes_of("1")); }},
      {"add", [](Store& s, const std::string& key) { return s.add(key, 1).status(); }},
      {"compare_set",
       [](Store& s, const std::string& key) { return s.compare_set(key, {}, bytes_of("1")).status(); }},
      {"multi_set",
       [](Store& s, const std::string& key) {
         return s.multi_set(Names{"other", key}, std::vector<Buffer>{Buffer(), buffer_of("1")});
       }},
  };
  const std::unique_ptr<Store> other = family_->open();
  for (const auto& [name, make] : ways) {
    SCOPED_TRACE(name);
    for (int round = 0; round < 20; ++round) {
      const std::string key = cat(name, round);
      run_threads(4, [&, &make = make](int i) {
        if (i == 0) {
          EXPECT_OK(make(*other, key));
        }
        if (i == 1) {
          EXPECT_THAT(store_.get(key), holds("1"));
        }
        if (i == 2) {
          EXPECT_OK(store_.wait(Names{key}));
        }
        if (i == 3) {
          EXPECT_THAT(store_.multi_get(Names{key}), IsOkAnd(ElementsAre(HoldsText("1"))));
        }
      });
    }
  }
}

TEST_P(StoreWaitConformance, WaitReturnsWhenTheLastOfSeveralKeysCame) {
  for (int round = 0; round < 20; ++round) {
    const Names keys = {cat(round, "/a"), cat(round, "/b"), cat(round, "/c")};
    run_threads(4, [&](int i) {
      if (i < 3) {
        EXPECT_OK(store_.set(keys[static_cast<std::size_t>(2 - i)], {}));
      } else {
        EXPECT_OK(store_.wait(keys));
        EXPECT_THAT(store_.check(keys), IsOkAnd(true));
      }
    });
  }
  EXPECT_OK(store_.wait(Names{}));
}

// Each waits for what the other sets next: one wake-up that is lost ends it.
TEST_P(StoreWaitConformance, NoWakeUpIsLost) {
  run_threads(2, [&](int me) {
    const std::unique_ptr<Store> own = family_->open();
    for (int round = 0; round < 200; ++round) {
      if (round % 2 == me) {
        ASSERT_OK(own->set(cat("turn", round), {}));
      } else {
        ASSERT_OK(own->wait(Names{cat("turn", round)}));
      }
    }
  });
}

TEST_P(StoreWaitConformance, OthersUseTheHandleWhileOneBlocks) {
  for (int round = 0; round < 10; ++round) {
    const std::string key = cat("key", round), queue = cat("queue", round);
    run_threads(3, [&](int i) {
      if (i == 0) {
        EXPECT_THAT(store_.get(key), holds("1"));
      }
      if (i == 1) {
        EXPECT_THAT(store_.queue_pop(queue), holds("item"));
      }
      if (i == 2) {
        for (int n = 1; n <= 20; ++n) EXPECT_THAT(store_.add(cat("n", round), 1), IsOkAnd(n));
        EXPECT_OK(store_.queue_push(queue, bytes_of("item")));
        EXPECT_OK(store_.set(key, bytes_of("1")));
      }
    });
  }
}

TEST_P(StoreWaitConformance, ATimeoutNamesTheKeysThatAreMissing) {
  ASSERT_OK(fake_store_.set("here", {}));
  Status status;
  EXPECT_THAT(time_of([&] { status = fake_store_.wait(Names{"here", "gone", "lost"}); }), Ge(5s));
  EXPECT_THAT(status, StatusIs(Code::kTimeout, AllOf(HasSubstr("gone\""), HasSubstr("lost\""),
                                                     HasSubstr("wait"), Not(HasSubstr("here\"")))));
  EXPECT_THAT(time_of([&] { status = fake_store_.get("gone").status(); }), Ge(5s));
  EXPECT_THAT(status, StatusIs(Code::kTimeout, AllOf(HasSubstr("gone\""), HasSubstr("get"))));
  EXPECT_THAT(time_of([&] { status = fake_store_.multi_get(Names{"gone", "here"}).status(); }), Ge(5s));
  EXPECT_THAT(status, StatusIs(Code::kTimeout, AllOf(HasSubstr("gone\""), Not(HasSubstr("here\"")))));
  EXPECT_THAT(time_of([&] { status = fake_store_.queue_pop("empty").status(); }), Ge(5s));
  EXPECT_THAT(status, StatusIs(Code::kTimeout, HasSubstr("empty\"")));
  EXPECT_THAT(status, Not(FailureIs(Failure::kQueueEmpty)));
  EXPECT_THAT(fake_store_.get("here"), holds(""));
}

TEST_P(StoreWaitConformance, ADeadlineOfTheCallBeatsTheTimeoutOfTheStore) {
  Status status;
  EXPECT_THAT(time_of([&] { status = fake_store_.wait(Names{"gone"}, clock_.in(10s)); }), Ge(10s));
  EXPECT_THAT(status, StatusIs(Code::kTimeout));
  fake_store_.set_timeout(1000h);
  EXPECT_EQ(fake_store_.timeout(), 1000h);
  time_of([&] { status = fake_store_.wait(Names{"gone"}, clock_.in(1s)); });
  EXPECT_THAT(status, StatusIs(Code::kTimeout));
  fake_store_.set_timeout(2s);
  EXPECT_THAT(time_of([&] { status = fake_store_.get("gone").status(); }), Ge(2s));
  EXPECT_THAT(status, StatusIs(Code::kTimeout));
}

TEST_P(StoreWaitConformance, ADeadlineThatHasPassedEndsAWaitAtOnce) {
  const Deadline passed = clock_.in(0s);
  EXPECT_THAT(fake_store_.get("gone", passed), StatusIs(Code::kTimeout));
  EXPECT_THAT(fake_store_.wait(Names{"gone"}, passed), StatusIs(Code::kTimeout));
  EXPECT_THAT(fake_store_.queue_pop("gone", OnEmpty::kWait, passed), StatusIs(Code::kTimeout));
  EXPECT_OK(fake_store_.set("gone", {}));
  EXPECT_THAT(fake_store_.get("gone"), holds(""));
}

TEST_P(StoreWaitConformance, APopThatTimedOutTakesNothing) {
  Status status;
  time_of([&] { status = fake_store_.queue_pop("q").status(); });
  ASSERT_THAT(status, StatusIs(Code::kTimeout));
  ASSERT_OK(fake_store_.queue_push("q", bytes_of("item")));
  EXPECT_THAT(fake_store_.queue_len("q"), IsOkAnd(1));
  EXPECT_THAT(fake_store_.queue_pop("q"), holds("item"));
}

TEST_P(StoreWaitConformance, EachWaitingPopperGetsOneItem) {
  constexpr int kPoppers = 4, kPushers = 2, kItems = 10;  // per popper; a pusher pushes twice as many
  std::mutex mutex;
  std::multiset<std::string> popped;
  run_threads(kPoppers + kPushers, [&](int i) {
    const std::unique_ptr<Store> own = family_->open();
    for (int n = 0; n < (i < kPoppers ? kItems : kItems * kPoppers / kPushers); ++n) {
      if (i >= kPoppers) {
        ASSERT_OK(own->queue_push("q", bytes_of(cat(i, "/", n))));
        continue;
      }
      const Result<Buffer> item = own->queue_pop("q");
      ASSERT_OK(item);
      const std::lock_guard lock(mutex);
      popped.emplace(text_of(*item));
    }
  });
  EXPECT_EQ(popped.size(), std::size_t{kPoppers} * kItems);
  EXPECT_EQ(std::set(popped.begin(), popped.end()).size(), popped.size());
  EXPECT_THAT(store_.queue_len("q"), IsOkAnd(0));
}

TEST_P(StoreWaitConformance, NoAddIsLostOrSeenTwice) {
  constexpr int kThreads = 8, kAdds = 50;
  std::mutex mutex;
  std::set<std::int64_t> sums;
  run_threads(kThreads, [&](int i) {
    const std::unique_ptr<Store> own = i % 2 == 0 ? family_->open() : nullptr;
    Store& store = own ? *own : store_;
    for (int n = 0; n < kAdds; ++n) {
      const Result<std::int64_t> sum = store.add("n", 1);
      ASSERT_OK(sum);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(sums.insert(*sum).second) << *sum << " was seen twice";
    }
  });
  EXPECT_EQ(sums.size(), std::size_t{kThreads} * kAdds);
  EXPECT_EQ(*sums.rbegin(), kThreads * kAdds);
}

TEST_P(StoreWaitConformance, CompareSetLetsOneWin) {
  constexpr int kThreads = 4, kRounds = 20;
  std::atomic<int> wins = 0;
  run_threads(kThreads, [&](int i) {
    for (int round = 0; round < kRounds; ++round) {
      const std::string me = cat("thread ", i);
      const Result<Buffer> winner = store_.compare_set(cat("round", round), {}, bytes_of(me));
      ASSERT_OK(winner);
      if (text_of(*winner) == me) ++wins;
    }
  });
  EXPECT_EQ(wins, kRounds);
}

TEST_P(StoreWaitConformance, AKeyThatComesAndGoesHangsNobody) {
  std::atomic<bool> done = false;
  run_threads(4, [&](int i) {
    const std::unique_ptr<Store> own = family_->open();
    if (i == 0) {
      for (int round = 0; round < 100; ++round) {
        EXPECT_OK(own->set("flicker", bytes_of("1")));
        EXPECT_OK(own->delete_key("flicker"));
      }
      done = true;
      EXPECT_OK(own->set("flicker", bytes_of("1")));
    } else {
      do {
        EXPECT_THAT(own->get("flicker"), holds("1"));
      } while (!done);
    }
  });
}

TEST_P(StoreWaitConformance, ABarrierLetsNobodyPassBeforeAllHaveCome) {
  constexpr int kThreads = 5, kRounds = 20;
  std::atomic<int> arrived = 0;
  run_threads(kThreads, [&](int i) {
    const std::unique_ptr<Store> own = i % 2 == 0 ? family_->open() : nullptr;
    Store& store = own ? *own : store_;
    for (int round = 1; round <= kRounds; ++round) {
      ++arrived;
      ASSERT_OK(store.barrier("barrier", WorldSize(kThreads)));
      EXPECT_GE(arrived.load(), round * kThreads);
    }
  });
  EXPECT_EQ(arrived, kThreads * kRounds);
  EXPECT_THAT(store_.num_keys(), IsOkAnd(2));
}

TEST_P(StoreWaitConformance, ABarrierOfOneDoesNotWaitAndOfNoneIsRefused) {
  for (int round = 0; round < 3; ++round) EXPECT_OK(store_.barrier("barrier", WorldSize(1)));
  EXPECT_THAT(store_.barrier("barrier", WorldSize(0)), StatusIs(Code::kInvalid));
}

TEST_P(StoreWaitConformance, ABarrierThatTimesOutSaysHowManyCame) {
  Status status;
  EXPECT_THAT(time_of([&] { status = fake_store_.barrier("meet", WorldSize(3)); }), Ge(5s));
  EXPECT_THAT(status, StatusIs(Code::kTimeout, AllOf(HasSubstr("meet\""), HasSubstr("1 of 3"))));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreWaitConformance);

}  // namespace lockstep::testing
