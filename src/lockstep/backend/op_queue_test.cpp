#include "lockstep/backend/op_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::backend {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Clock& steady() { return Clock::steady(); }
Deadline long_enough() { return steady().in(30min); }
OpQueue::Turn turn() { return {.deadline = long_enough(), .name = "barrier"}; }

TEST(OpQueue, ASynchronousOperationRunsOnItsCallersThread) {
  OpQueue queue(steady());
  std::thread::id on;
  EXPECT_OK(queue.run(turn(), [&](std::uint64_t sequence) {
    on = std::this_thread::get_id();
    EXPECT_EQ(sequence, 1U);
    return Status();
  }));
  EXPECT_EQ(on, std::this_thread::get_id());
  EXPECT_EQ(queue.last_sequence(), 1U);
}

TEST(OpQueue, OperationsRunInTheOrderInWhichTheyWereIssued) {
  OpQueue queue(steady());
  std::vector<int> order;
  std::promise<void> go;
  const WorkPtr first = queue.start(
      [&](std::uint64_t) {
        go.get_future().wait();
        order.push_back(1);
        return Status();
      },
      long_enough());
  std::vector<WorkPtr> works;
  for (int i = 2; i <= 4; ++i) {
    works.push_back(queue.start(
        [&order, i](std::uint64_t) {
          order.push_back(i);
          return Status();
        },
        long_enough()));
  }
  go.set_value();
  EXPECT_OK(queue.run(turn(), [&](std::uint64_t) {
    order.push_back(5);
    return Status();
  }));
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4, 5));
  for (const WorkPtr& work : works) EXPECT_TRUE(work->is_success());
  EXPECT_EQ(works[2]->sequence(), 4U);
}

TEST(OpQueue, EveryOperationOfManyThreadsRunsOnceAndAlone) {
  OpQueue queue(steady());
  std::atomic<int> inside = 0;
  int count = 0;  // plain: the thread sanitizer would see two at once
  const auto body = [&](std::uint64_t) {
    EXPECT_EQ(++inside, 1);
    ++count;
    --inside;
    return Status();
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        if ((i + t) % 3 == 0) {
          EXPECT_OK(queue.start(body, long_enough())->wait());
        } else if ((i + t) % 3 == 1) {
          EXPECT_OK(queue.run(turn(), body));
        } else {
          (void)queue.start(body, long_enough());  // nobody waits
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_OK(queue.run(turn(), [&](std::uint64_t) { return Status(); }));
  EXPECT_EQ(count, 2000);
}

TEST(OpQueue, AnOperationMayTakeSeveralNumbers) {
  OpQueue queue(steady());
  const WorkPtr three = queue.start(
      [](std::uint64_t first) { return first == 1 ? Status() : Status::internal(""); }, long_enough(), 3);
  const WorkPtr next = queue.start(
      [](std::uint64_t number) { return number == 4 ? Status() : Status::internal(""); }, long_enough());
  EXPECT_OK(next->wait());
  EXPECT_OK(three->wait());
  EXPECT_EQ(three->sequence(), 1U);
  EXPECT_EQ(next->sequence(), 4U);
  EXPECT_EQ(queue.last_sequence(), 4U);
}

TEST(OpQueue, AFailureEndsWhatHasNotBegunAndAllThatComesLater) {
  OpQueue queue(steady());
  std::promise<void> begun;
  std::promise<void> go;
  const WorkPtr running = queue.start(
      [&](std::uint64_t) {
        begun.set_value();
        go.get_future().wait();
        return Status();
      },
      long_enough());
  const auto kept = std::make_shared<int>(1);
  const WorkPtr waiting = queue.start([kept](std::uint64_t) { return Status(); }, long_enough());
  begun.get_future().wait();
  queue.fail(Status::disconnected("rank 3 died"));
  queue.fail(Status::internal("a later one"));
  EXPECT_THAT(waiting->wait(), StatusIs(Code::kDisconnected));
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_FALSE(running->is_completed());
  go.set_value();
  EXPECT_OK(running->wait());
  EXPECT_THAT(queue.run(turn(), [](std::uint64_t) { return Status(); }), StatusIs(Code::kDisconnected));
  EXPECT_THAT(queue.start([](std::uint64_t) { return Status(); }, long_enough())->wait(),
              StatusIs(Code::kDisconnected));
}

TEST(OpQueue, ABodyThatThrowsLeavesTheQueueUsable) {
  OpQueue queue(steady(), "rank 2: group \"pair\"");
  const auto fine = [](std::uint64_t) { return Status(); };
  const auto no_memory = [](std::uint64_t) -> Status { throw std::bad_alloc(); };
  EXPECT_THROW((void)queue.run(turn(), no_memory), std::bad_alloc);
  EXPECT_FALSE(queue.busy());
  EXPECT_OK(queue.run(turn(), fine));

  const auto kept = std::make_shared<int>(1);
  const auto unable = [kept](std::uint64_t) -> Status { throw std::bad_alloc(); };
  const auto wrong = [kept](std::uint64_t) -> Status { throw std::runtime_error("a hook's"); };
  for (const bool waits : {true, false}) {  // on this thread, and on the worker
    const WorkPtr first = queue.start(unable, long_enough());
    const WorkPtr second = queue.start(wrong, long_enough(), 1, "all_reduce");
    std::promise<Status> told;
    second->on_complete([&](const Status& status) { told.set_value(status); });
    if (waits) (void)second->wait();
    EXPECT_THAT(told.get_future().get(), StatusIs(Code::kInternal, HasSubstr("has thrown: a hook's")));
    EXPECT_EQ(first->status().failure(), Failure::kNoMemory) << first->status().text();
    EXPECT_THAT(std::string(first->status().message()), HasSubstr("rank 2: group \"pair\""));
    EXPECT_OK(queue.run(turn(), fine));
  }

  EXPECT_THROW(queue.run_alone([] { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_FALSE(queue.busy());
  queue.run_alone([] {});
  EXPECT_OK(queue.run(turn(), fine));
  EXPECT_EQ(queue.last_sequence(), 9U);
}

TEST(OpQueue, AWaitWithLessTimeThanTheOperationGivesUpAndTheOperationGoesOn) {
  lockstep::testing::FakeClock clock;
  OpQueue queue(clock, "rank 2: group \"pair\"");
  std::promise<void> go;
  const WorkPtr work = queue.start(
      [&](std::uint64_t) {
        go.get_future().wait();
        return Status();
      },
      clock.in(1h), 1, "all_reduce");
  const Deadline soon = clock.in(1min);
  clock.advance(2min);
  EXPECT_THAT(work->wait(soon),
              StatusIs(Code::kTimeout, HasSubstr("rank 2: group \"pair\": all_reduce #1 has not ended")));
  EXPECT_FALSE(work->is_completed());
  EXPECT_OK(work->status());
  go.set_value();
  EXPECT_OK(work->wait());
}

// It had the time for its own operation, and ran the one before, which may take longer.
TEST(OpQueue, AWaitDoesNotRunAnEarlierOperationThatHasMoreTime) {
  std::promise<void> begun;
  std::promise<void> go;
  lockstep::testing::FakeClock clock;
  OpQueue queue(clock);  // its worker is waited for while there is what the callback refers to
  const WorkPtr before = queue.start([](std::uint64_t) { return Status(); }, clock.in(1min));
  before->on_complete([&](const Status&) {  // the worker runs nothing meanwhile
    begun.set_value();
    go.get_future().wait();
  });
  begun.get_future().wait();
  const WorkPtr first = queue.start([](std::uint64_t) { return Status(); }, clock.in(1h));
  const WorkPtr second = queue.start([](std::uint64_t) { return Status(); }, clock.in(1min));
  const Deadline soon = clock.in(1min);
  clock.advance(2min);
  EXPECT_THAT(second->wait(soon), StatusIs(Code::kTimeout, HasSubstr("#3 has not ended")));
  EXPECT_FALSE(first->is_completed());
  go.set_value();
  EXPECT_OK(second->wait(clock.in(2h)));
  EXPECT_OK(first->wait());
}

TEST(OpQueue, CallbacksRunOnceOnTheWorkerAndCannotStartACollective) {
  OpQueue queue(steady());
  std::promise<std::pair<std::thread::id, Status>> called;
  const WorkPtr work = queue.start([](std::uint64_t) { return Status(); }, long_enough());
  work->on_complete([&](const Status& status) {
    EXPECT_OK(status);
    called.set_value({std::this_thread::get_id(), queue.run(turn(), [](std::uint64_t) { return Status(); })});
  });
  const auto [on, status] = called.get_future().get();
  EXPECT_NE(on, std::this_thread::get_id());
  EXPECT_THAT(status, StatusIs(Code::kInvalid));
  std::promise<void> again;
  work->on_complete([&](const Status&) { again.set_value(); });
  again.get_future().wait();
}

TEST(OpQueue, ACallbackCannotWaitForAnOperationThatItsThreadMustComplete) {
  OpQueue queue(steady());
  std::promise<Status> waited;
  WorkPtr second;
  std::promise<void> go;
  const auto after_go = [&](std::uint64_t) {
    go.get_future().wait();
    return Status();
  };
  const WorkPtr first = queue.start(after_go, long_enough());
  second = queue.start([](std::uint64_t) { return Status(); }, long_enough());
  first->on_complete([&](const Status&) { waited.set_value(second->wait()); });
  go.set_value();
  EXPECT_THAT(waited.get_future().get(), StatusIs(Code::kInvalid, HasSubstr("#2 is waited for")));
  EXPECT_OK(second->wait());
}

TEST(OpQueue, MayBeDestroyedInACallback) {
  auto queue = std::make_unique<OpQueue>(steady());
  std::promise<void> go;
  const WorkPtr work = queue->start(
      [&](std::uint64_t) {
        go.get_future().wait();
        return Status();
      },
      long_enough());
  std::promise<void> destroyed;
  work->on_complete([&, held = std::shared_ptr<OpQueue>(std::move(queue))](const Status&) mutable {
    held.reset();
    destroyed.set_value();
  });
  go.set_value();
  destroyed.get_future().wait();
  EXPECT_OK(work->wait());
}

TEST(OpQueue, AThreadThatWaitsForItsTurnHearsThatTheQueueIsDestroyed) {
  auto queue = std::make_unique<OpQueue>(steady());
  std::promise<void> runs;
  std::promise<void> go;
  auto running = std::async(std::launch::async, [&, in = queue.get()] {
    return in->run(turn(), [&](std::uint64_t) {
      runs.set_value();
      go.get_future().wait();
      return Status();
    });
  });
  runs.get_future().wait();
  auto waiting = std::async(std::launch::async, [in = queue.get()] {
    return in->run(turn(), [](std::uint64_t) { return Status(); });
  });
  while (queue->last_sequence() < 2) std::this_thread::yield();
  std::thread destroyer([&] { queue.reset(); });
  EXPECT_THAT(waiting.get(), StatusIs(Code::kAborted, HasSubstr("destroyed")));
  go.set_value();
  EXPECT_OK(running.get());
  destroyer.join();
}

// Neither its worker nor who may hold its mutex exists there.
TEST(OpQueue, InAForkedChildNobodyWaits) {
  auto queue = std::make_unique<OpQueue>(steady());
  std::promise<void> go;
  std::promise<void> runs;
  WorkPtr work = queue->start(
      [&](std::uint64_t) {
        runs.set_value();
        go.get_future().wait();
        return Status();
      },
      long_enough());
  runs.get_future().wait();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    bool refused = work->wait().failure() == Failure::kForked && !work->is_completed();
    work->on_complete([&](const Status& status) { refused &= status.failure() == Failure::kForked; });
    queue.reset();
    work.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  go.set_value();
  EXPECT_OK(work->wait());
}

TEST(OpQueue, AWorkKnowsHowLongItRan) {
  lockstep::testing::FakeClock clock;
  OpQueue queue(clock);
  const WorkPtr work = queue.start(
      [&](std::uint64_t) {
        clock.advance(7ms);
        return Status();
      },
      clock.in(30min));
  EXPECT_OK(work->wait());
  EXPECT_EQ(work->duration(), 7ms);
}

TEST(OpQueue, AWorkOutlivesItsQueue) {
  WorkPtr work;
  {
    OpQueue queue(steady());
    work = queue.start([](std::uint64_t) { return Status(); }, long_enough());
  }
  EXPECT_TRUE(work->is_completed());
  bool called = false;
  work->on_complete([&](const Status&) { called = true; });
  EXPECT_TRUE(called);
}

TEST(OpQueue, ASynchronousOperationKeepsItsDeadlineBehindAnotherOne) {
  OpQueue queue(steady(), "rank 2: group \"pair\"");
  std::promise<void> go;
  const WorkPtr before = queue.start(
      [&](std::uint64_t) {
        go.get_future().wait();
        return Status();
      },
      long_enough(), 1, "all_reduce");
  const WorkPtr after = queue.start([](std::uint64_t) { return Status(); }, long_enough(), 1, "all_gather");
  const auto body = [](std::uint64_t) { return Status::internal("runs although it is too late"); };
  const OpQueue::Turn soon{.deadline = steady().in(20ms), .name = "broadcast"};
  const Status late = queue.run(soon, body, [](const Status& why) { return why.with_prefix("told: "); });
  EXPECT_EQ(late.failure(), Failure::kMissingRanks);
  EXPECT_THAT(late, StatusIs(Code::kTimeout,
                             HasSubstr("told: rank 2: group \"pair\": broadcast #3 could not begin until its "
                                       "deadline: all_reduce #1 has not ended")));
  // Its number is lost: nobody can be in step with this rank any more.
  EXPECT_THAT(queue.failure(), StatusIs(Code::kTimeout));
  EXPECT_THAT(after->status(), StatusIs(Code::kTimeout));
  EXPECT_THAT(queue.run(turn(), body), StatusIs(Code::kTimeout));
  go.set_value();
  EXPECT_OK(before->wait());
}

TEST(OpQueue, ASynchronousOperationRunsNothingThatHasMoreTimeThanItself) {
  OpQueue queue(steady());
  std::promise<void> entered, go;
  const WorkPtr first = queue.start(
      [&](std::uint64_t) {
        entered.set_value();
        go.get_future().wait();
        return Status();
      },
      long_enough());
  entered.get_future().wait();
  std::thread::id on;
  const WorkPtr second = queue.start(
      [&](std::uint64_t) {
        on = std::this_thread::get_id();
        return Status();
      },
      long_enough());
  std::thread opens([&go] { go.set_value(); });
  EXPECT_OK(
      queue.run({.deadline = steady().in(20min), .name = "barrier"}, [](std::uint64_t) { return Status(); }));
  opens.join();
  EXPECT_OK(second->wait());
  EXPECT_NE(on, std::this_thread::get_id());
}

}  // namespace
}  // namespace lockstep::backend
