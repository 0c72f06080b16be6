#include "lockstep/transport/shm/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/fake_clock.h"
#include "lockstep/testing/ranks.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::transport::shm {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ranks_below;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Header header_of(std::uint64_t number) {
  Header header{};
  std::memcpy(header.data(), &number, sizeof(number));
  return header;
}
std::uint64_t number_of(const Header& header) {
  std::uint64_t number = 0;
  std::memcpy(&number, header.data(), sizeof(number));
  return number;
}

// Runs `body` with one thread per rank on a board of all of them.
template <typename Body>
void on_board(int size, Body body, const Clock& clock = Clock::steady()) {
  auto domains = Domain::of_threads(ranks_below(size), Bytes::mib(64));
  ASSERT_OK(domains.status());
  store::HashStore store;
  BoardOptions options{.name = "world", .members = {}, .staging = Bytes::kib(64), .patience = {}};
  options.describe = [](Rank, const Entry&, Rank, const Entry&) { return Status::invalid("out of step"); };
  for (int i = 0; i < size; ++i) options.members.push_back(i);
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      auto board =
          Board::make(*(*domains)[static_cast<std::size_t>(i)], options, store, Clock::steady().in(30s));
      ASSERT_OK(board.status());
      body(**board, clock);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& domain : *domains)
    EXPECT_LE(domain->heap().used(), Bytes::kib(256)) << "blocks were not given back";
}

TEST(Board, EveryRoundShowsWhatEachMemberPostedInIt) {
  for (const int size : {1, 2, 3, 8}) {
    on_board(size, [](Board& board, const Clock& clock) {
      const Deadline deadline = clock.in(60s);
      for (std::uint64_t round = 1; round <= 300; ++round) {
        ASSERT_OK(board.open_round(deadline));
        const std::uint64_t mine = round * 100 + static_cast<std::uint64_t>(board.index());
        std::memcpy(board.staging().data(), &mine, sizeof(mine));
        board.post_staging(header_of(round), Bytes{sizeof(mine)});
        ASSERT_OK(board.await_all(deadline));
        for (int peer = 0; peer < board.size(); ++peer) {
          const Posting posting = board.posting_of(peer);
          ASSERT_EQ(number_of(posting.header), round);
          std::uint64_t theirs = 0;
          std::memcpy(&theirs, board.range_of(peer, posting), sizeof(theirs));
          ASSERT_EQ(theirs, round * 100 + static_cast<std::uint64_t>(peer));
        }
      }
    });
  }
}

TEST(Board, AOneWayStreamNeverOverwritesWhatAReaderStillReads) {
  on_board(3, [](Board& board, const Clock& clock) {
    const Deadline deadline = clock.in(60s);
    for (std::uint64_t round = 1; round <= 500; ++round) {
      ASSERT_OK(board.open_round(deadline));
      if (board.index() == 0) {  // the writer waits for nobody but the buffer
        std::memset(board.staging().data(), static_cast<int>(round % 251), 4096);
        board.post_staging(header_of(round), Bytes{4096});
        continue;
      }
      board.post(header_of(round));
      ASSERT_OK(board.await(0, deadline));
      const std::byte* bytes = board.range_of(0, board.posting_of(0));
      for (std::size_t i = 0; i < 4096; i += 511) ASSERT_EQ(bytes[i], static_cast<std::byte>(round % 251));
    }
  });
}

TEST(Board, APostingThatWasChangedDoesNotFitItsSeal) {
  on_board(2, [](Board& board, const Clock& clock) {
    const Deadline deadline = clock.in(30s);
    for (const std::uint64_t round : {1, 2}) {
      ASSERT_OK(board.open_round(deadline));
      board.post_staging(header_of(round), Bytes{64});
      ASSERT_OK(board.await_all(deadline));
      const int peer = 1 - board.index();
      const Posting posted = board.posting_of(peer);
      EXPECT_OK(board.check(peer, posted));
      for (std::size_t bit = 0; bit < 8 * sizeof(Posting); ++bit) {
        Posting changed = posted;
        reinterpret_cast<unsigned char*>(&changed)[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
        const Status status = board.check(peer, changed);
        EXPECT_EQ(status.failure(), Failure::kCorruptFrame) << bit;
        EXPECT_EQ(status.cause().peer, board.rank_of(peer));
      }
      // One of an earlier round is no posting of this one.
      if (round == 2) {
        EXPECT_OK(board.check(peer, board.last_posting_of(peer), Board::Of::kLastRound));
        EXPECT_EQ(board.check(peer, board.last_posting_of(peer)).failure(), Failure::kCorruptFrame);
      }
    }
  });
}

// Where the block of a member begins that has posted `number` in its first round (board.cpp).
std::byte* block_of(Board& board, int peer, std::uint64_t number) {
  constexpr std::size_t kSecondPosting = 384 + sizeof(Posting);
  std::byte* const staged = board.range_of(peer, board.posting_of(peer));
  for (std::byte* at = staged; at > staged - (128 << 10); at -= sizeof(number)) {
    if (std::memcmp(at, &number, sizeof(number)) == 0) return at - kSecondPosting;
  }
  return nullptr;
}

// F11: member 1 has posted once; then one bit of what it says changes.
TEST(Board, AChangedBitOfItsWordsIsFoundAndTheMemberNamed) {
  constexpr std::uint64_t kNumber = 0x5eed5eed5eed5eedU;
  constexpr std::size_t kGone = 256 + 8;
  constexpr std::size_t kEntered = 384 + 2 * sizeof(Posting);
  constexpr std::size_t kFailures = kEntered + 4 * std::size_t{64};
  struct Case {
    const char* what;
    std::size_t byte;
    int member;  // in whose block
  };
  constexpr Case kCases[] = {{"its round", 0, 1},
                             {"its round, beside", 5, 1},
                             {"that it has left", kGone, 1},
                             {"its operation", kEntered + 64 + 8, 1},
                             {"its seal", kEntered + 64 + 17, 1},
                             {"the failure", (kFailures + 127) / 128 * 128, 0}};
  for (const Case& c : kCases) {
    for (const unsigned bit : {0U, 3U, 7U}) {
      std::atomic<int> met = 0;
      on_board(2, [&](Board& board, const Clock& clock) {
        const Deadline deadline = clock.in(30s);
        board.enter({.sequence = 5, .words = {1, 2, 3, 4, 5}});
        ASSERT_OK(board.open_round(deadline));
        board.post_staging(header_of(kNumber), Bytes{64});
        ASSERT_OK(board.await_all(deadline));
        ++met;
        while (met < 2) std::this_thread::yield();
        if (board.index() == 1) return;
        std::byte* const block = block_of(board, c.member, kNumber);
        ASSERT_TRUE(block);
        block[c.byte] ^= static_cast<std::byte>(1U << bit);
        // Member 1 does not come to this round: only what has changed can end the wait.
        Status status = board.open_round(deadline);
        if (status.ok()) {
          board.post(header_of(2));
          status = board.await(1, deadline);
        }
        EXPECT_EQ(status.failure(), Failure::kCorruptFrame) << c.what << ": " << status.text();
        EXPECT_EQ(status.cause().peer, Rank{c.member}) << c.what << ": " << status.text();
      });
    }
  }
}

TEST(Board, AMemberWithoutMemoryForItsBlockKeepsNobodyWaiting) {
  constexpr Bytes kCapacity = Bytes::mib(1);
  auto domains = Domain::of_threads(ranks_below(3), kCapacity);
  ASSERT_OK(domains.status());
  ASSERT_OK((*domains)[1]->heap().allocate(kCapacity).status());
  store::HashStore store;
  const BoardOptions options{
      .name = "world", .members = {0, 1, 2}, .staging = Bytes::kib(64), .patience = {}};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const Status status = Board::make(*(*domains)[i], options, store, Clock::steady().in(1h)).status();
      EXPECT_EQ(status.failure(), Failure::kNoSpace) << status.text();
      EXPECT_EQ(status.cause().peer, Rank{1});
      EXPECT_THAT(std::string(status.message()), HasSubstr("no room for"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::size_t i : {0, 2})
    EXPECT_EQ((*domains)[i]->heap().used(), Bytes{0}) << "its block is free again";
}

TEST(Board, APostingOutsideTheHeapHasNoRange) {
  on_board(2, [](Board& board, const Clock& clock) {
    const Deadline deadline = clock.in(30s);
    ASSERT_OK(board.open_round(deadline));
    board.post(header_of(1), UINT64_MAX - 8, Bytes{64});
    ASSERT_OK(board.await_all(deadline));
    EXPECT_EQ(board.range_of(1 - board.index(), board.posting_of(1 - board.index())), nullptr);
    ASSERT_OK(board.open_round(deadline));
    board.post(header_of(2));
  });
}

TEST(Board, WhoeverDoesNotPostIsNamed) {
  lockstep::testing::FakeClock fake;
  on_board(
      4,
      [&fake](Board& board, const Clock& clock) {
        const Deadline deadline = clock.in(1min);
        ASSERT_OK(board.open_round(deadline));
        if (board.index() == 1 || board.index() == 2) return;  // asleep in user code
        board.post(header_of(1));
        ASSERT_OK(board.await(3 - board.index(), deadline));
        if (board.index() == 0) fake.advance(2min);
        const Status status = board.await_all(deadline);
        EXPECT_EQ(status.code(), Code::kTimeout);
        EXPECT_THAT(status.cause().missing, ElementsAre(Rank{1}, Rank{2}));
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1, 2"));
      },
      fake);
}

TEST(Board, KnowsWhoHasComeLastToTheOperationBefore) {
  on_board(3, [](Board& board, const Clock& clock) {
    const Deadline deadline = clock.in(60s);
    const auto meet = [&] {
      ASSERT_OK(board.open_round(deadline));
      board.post(header_of(1));
      ASSERT_OK(board.await_all(deadline));
    };
    EXPECT_FALSE(board.last_to_enter());
    // One after the other, and rank 1 last.
    for (const int turn : {0, 2, 1}) {
      if (board.index() == turn) board.enter({.sequence = 7});
      meet();
    }
    EXPECT_FALSE(board.last_to_enter());
    board.enter({.sequence = 8});
    meet();
    const auto latest = board.last_to_enter();
    ASSERT_EQ(latest.has_value(), board.index() != 1);
    if (!latest) return;
    EXPECT_EQ(latest->index, 1);
    EXPECT_EQ(latest->sequence, 7U);
    EXPECT_GT(latest->after, Duration::zero());
  });
}

TEST(Board, TheFirstFailureReachesEveryWaiterAndIsKept) {
  on_board(3, [](Board& board, const Clock& clock) {
    const Deadline deadline = clock.in(30s);
    ASSERT_OK(board.open_round(deadline));
    if (board.index() == 2) {
      for (const int peer : {0, 1}) ASSERT_OK(board.await(peer, deadline));  // both are in the round
      const Status died =
          Status::disconnected("rank 7 died", {.failure = Failure::kPeerDied, .peer = Rank{7}});
      EXPECT_TRUE(board.fail(died));
      EXPECT_FALSE(board.fail(Status::internal("a later one")));
    } else {
      board.post(header_of(1));
      EXPECT_THAT(board.await_all(deadline), lockstep::testing::StatusIs(Code::kDisconnected));
    }
    const Status failure = board.failure();
    EXPECT_EQ(failure.message(), "rank 7 died");
    EXPECT_EQ(failure.failure(), Failure::kPeerDied);
    EXPECT_EQ(failure.cause().peer, Rank{7});
  });
}

}  // namespace
}  // namespace lockstep::transport::shm
