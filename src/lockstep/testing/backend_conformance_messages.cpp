// Messages between two ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "lockstep/backend/operations.h"
#include "lockstep/testing/backend_conformance_cases.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Receives first on every rank, across a barrier, to oneself too; small ones, and ones of some 300 KB.
void in_any_order(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  const int n = group.size().value;
  const int own = group.rank().value;
  const auto size = [](int from, int to) { return index_of(from * 300'000 + to * 3); };
  std::vector<Buffer> in(index_of(n));
  std::vector<Buffer> out(index_of(n));
  std::vector<WorkPtr> works;
  for (int peer = 0; peer < n; ++peer) {
    in[index_of(peer)].resize(size(peer, own));
    works.push_back(group.recv(Rank{peer}, 7, in[index_of(peer)]));
  }
  ASSERT_OK(backend::barrier(group));
  for (int peer = 0; peer < n; ++peer) {
    out[index_of(peer)] = pattern(size(own, peer), own, peer, 0);
    works.push_back(group.send(Rank{peer}, 7, out[index_of(peer)]));
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->wait());
  for (int peer = 0; peer < n; ++peer) {
    EXPECT_EQ(works[index_of(peer)]->source(), Rank{peer});
    EXPECT_EQ(in[index_of(peer)], pattern(size(peer, own), peer, own, 0));
  }
}

void tags(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  const int n = group.size().value;
  const Rank next((group.rank().value + 1) % n);
  const Rank previous((group.rank().value + n - 1) % n);
  std::vector<std::array<int, 1>> sent;
  for (int tag = 0; tag < 5; ++tag) sent.push_back({tag * 10});
  std::vector<WorkPtr> works;
  for (std::size_t tag = 0; tag < 5; ++tag)
    works.push_back(group.send(next, tag, std::as_bytes(std::span(sent[tag]))));
  for (const std::size_t tag : {3U, 0U, 4U, 2U, 1U}) {
    int number = -1;
    ASSERT_OK(group.recv(previous, tag, std::as_writable_bytes(std::span(&number, 1)))->wait());
    EXPECT_EQ(number, static_cast<int>(tag) * 10);
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->wait());
}

// Those with one tag arrive in the order in which they were sent; a work may be let go of.
void one_after_the_other(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  constexpr int kMessages = 200;
  if (group.rank().value == 0) {
    for (int peer = 1; peer < group.size().value; ++peer) {
      for (int i = 0; i < kMessages; ++i) {
        const auto number = std::make_shared<std::vector<int>>(1, i);
        group.send(Rank{peer}, 8, bytes_of(*number), {.keep = number});
      }
    }
    return;
  }
  for (int i = 0; i < kMessages; ++i) {
    std::vector<int> number{-1};
    ASSERT_OK(group.recv(Rank{0}, 8, bytes_of(number))->wait());
    ASSERT_EQ(number[0], i);
  }
}

void from_whomever(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  std::vector<int> number{group.rank().value};
  if (group.rank().value != 0) {
    ASSERT_OK(group.send(Rank{0}, 9, bytes_of(number))->wait());
    return;
  }
  std::vector<int> seen;
  for (int i = 1; i < group.size().value; ++i) {
    const WorkPtr work = group.recv({}, 9, bytes_of(number));
    ASSERT_OK(work->wait());
    EXPECT_EQ(work->source(), Rank{number[0]});
    seen.push_back(number[0]);
  }
  std::vector<int> others(index_of(group.size().value - 1));
  std::iota(others.begin(), others.end(), 1);
  EXPECT_THAT(seen, ::testing::UnorderedElementsAreArray(others));
}

// A callback comes though nobody waits.
void message_callbacks(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  const int n = group.size().value;
  std::vector<int> in{-1};
  const std::vector<int> out{group.rank().value};
  std::promise<Status> ended;
  const WorkPtr work = group.recv(Rank((group.rank().value + n - 1) % n), 10, bytes_of(in));
  work->on_complete([&ended](const Status& status) { ended.set_value(status); });
  ASSERT_OK(group.send(Rank((group.rank().value + 1) % n), 10, bytes_of(out))->wait());
  auto future = ended.get_future();
  ASSERT_EQ(future.wait_for(60s), std::future_status::ready);
  EXPECT_OK(future.get());
  EXPECT_EQ(in[0], (group.rank().value + n - 1) % n);
  std::promise<Status> again;
  work->on_complete([&again](const Status& status) { again.set_value(status); });
  EXPECT_OK(again.get_future().get());
}

// Another size is said to the receiver, and the next message arrives. Large, because of a small message that
// is on its way already the sender may hear with its next one.
void sizes_that_differ(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  const int n = group.size().value;
  const Rank next((group.rank().value + 1) % n);
  const Rank previous((group.rank().value + n - 1) % n);
  for (const std::size_t expected : {std::size_t{180'000}, std::size_t{220'000}}) {
    const Buffer out(200'000);
    Buffer in(expected);
    const WorkPtr sent = group.send(next, 11, out);
    const Status status = group.recv(previous, 11, in)->wait();
    EXPECT_EQ(status.code(), Code::kInvalid) << status.text();
    (void)sent->wait();  // not every backend tells the sender
    EXPECT_OK(group.failure());
  }
  std::vector<int> number{-1};
  const std::vector<int> own{group.rank().value};
  const WorkPtr sent = group.send(next, 11, bytes_of(own));
  ASSERT_OK(group.recv(previous, 11, bytes_of(number))->wait());
  EXPECT_EQ(number[0], previous.value);
  ASSERT_OK(sent->wait());
}

// A receive that gives up is withdrawn: a later one gets the message.
void withdrawn(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  const int n = group.size().value;
  const Rank next((group.rank().value + 1) % n);
  const Rank previous((group.rank().value + n - 1) % n);
  std::vector<int> number{-1};
  const Status late =
      group.recv(previous, 12, bytes_of(number), {.deadline = Clock::steady().in(50ms)})->wait();
  EXPECT_EQ(late.code(), Code::kTimeout) << late.text();
  EXPECT_OK(group.failure());
  ASSERT_OK(backend::barrier(group));
  const std::vector<int> own{group.rank().value};
  const WorkPtr sent = group.send(next, 12, bytes_of(own));
  // A wait of its own that is too short changes nothing.
  const WorkPtr received = group.recv(previous, 13, bytes_of(number));
  EXPECT_EQ(received->wait(Clock::steady().in(1ms)).code(), Code::kTimeout);
  EXPECT_FALSE(received->is_completed());
  std::vector<int> other{-1};
  ASSERT_OK(group.recv(previous, 12, bytes_of(other))->wait());
  EXPECT_EQ(other[0], previous.value);
  ASSERT_OK(sent->wait());
  ASSERT_OK(backend::barrier(group));
  const WorkPtr last = group.send(next, 13, bytes_of(own));
  ASSERT_OK(received->wait());
  EXPECT_EQ(number[0], previous.value);
  ASSERT_OK(last->wait());
}

void wrong_peer(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  const int n = group.size().value;
  EXPECT_EQ(group.send(Rank{n}, 0, {})->wait().code(), Code::kInvalid);
  EXPECT_EQ(group.recv(Rank{-1}, 0, {})->wait().code(), Code::kInvalid);
  EXPECT_OK(group.failure());
}

}  // namespace

std::vector<BackendCase> message_cases() {
  return {{"Message", "ArrivesWhicheverSideComesFirst", in_any_order},
          {"Message", "IsMatchedByItsTag", tags},
          {"Message", "ArrivesAfterTheOneBefore", one_after_the_other},
          {"Message", "MayComeFromWhomever", from_whomever},
          {"Message", "HasACallbackThoughNobodyWaits", message_callbacks},
          {"Message", "OfAnotherSizeIsRefused", sizes_that_differ, "a message of another size is refused"},
          {"Message", "AReceiveThatGivesUpIsWithdrawn", withdrawn, "a receive that gives up is withdrawn"},
          {"Message", "NeedsAPeerOfTheGroup", wrong_peer}};
}

}  // namespace lockstep::testing
