#include "lockstep/collective/local.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <span>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/collective/slices.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/testing/ranks.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::collective {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::ranks_below;
using ::testing::HasSubstr;
using transport::shm::Board;
using transport::shm::BoardOptions;
using transport::shm::Domain;

// Where a rank's buffer lies.
enum class Memory { kForeign, kResident, kMixed };

// Of an operation: the same on all ranks, and over a few of them everything that can have been measured.
const Means& means_of(std::uint64_t sequence) {
  static Alone alone;
  constexpr std::array past_cache{CopyWay::kPastCache, CopyWay::kPastCache, CopyWay::kPastCache};
  static const Means all[] = {
      {.tuning = {}, .helpers = alone},
      {.tuning = {.copy_ways = past_cache, .round_bytes = 1 << 20}, .helpers = alone},
      {.tuning = {.copy_ways = past_cache, .round_bytes = 0}, .helpers = alone},
  };
  return all[sequence % std::size(all)];
}

// One rank of a world of threads on one board, and the calls it makes.
class LocalMember {
 public:
  LocalMember(Board& board, Memory memory) : board_(board), memory_(memory) {}

  int rank() const { return board_.index(); }
  int size() const { return board_.size(); }
  Board& board() { return board_; }

  LocalCall call(OpKind kind, DType dtype = DType::kUint8, std::size_t count = 0, int root = -1,
                 ReduceOp op = ReduceOp::kSum) {
    const Fingerprint fingerprint{.group = 1,
                                  .sequence = ++sequence_,
                                  .count = count,
                                  .root = root,
                                  .kind = kind,
                                  .dtype = dtype,
                                  .reduce_op = op};
    return {.board = board_,
            .fingerprint = fingerprint,
            .deadline = Clock::steady().in(60s),
            .means = means_of(sequence_),
            .root = std::max(root, 0)};
  }

  // A buffer with these contents, where this world keeps its buffers.
  ByteSpan buffer(const Buffer& contents) {
    const bool resident = memory_ == Memory::kResident || (memory_ == Memory::kMixed && rank() % 2 == 0);
    if (!resident) {
      foreign_.push_back(contents);
      return foreign_.back();
    }
    auto range = board_.domain().heap().allocate(Bytes{contents.size()});
    LOCKSTEP_CHECK(range.ok(), range.status().text());
    if (!contents.empty()) std::memcpy(range->data, contents.data(), contents.size());
    return {range->data, contents.size()};
  }

 private:
  Board& board_;
  const Memory memory_;
  std::uint64_t sequence_ = 0;
  std::deque<Buffer> foreign_;
};

void run_world(int size, Memory memory, const std::function<void(LocalMember&)>& body) {
  auto domains = Domain::of_threads(ranks_below(size), Bytes::gib(1));
  ASSERT_OK(domains.status());
  store::HashStore store;
  // Small, so that a few thousand elements are many windows.
  BoardOptions options{.name = "world", .members = {}, .staging = Bytes::kib(16), .patience = {}};
  for (int i = 0; i < size; ++i) options.members.push_back(i);
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      auto board =
          Board::make(*(*domains)[static_cast<std::size_t>(i)], options, store, Clock::steady().in(30s));
      ASSERT_OK(board.status());
      LocalMember member(**board, memory);
      body(member);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The same bytes for the same (seed, rank), on every rank.
Buffer data_of(std::uint64_t seed, int rank, std::size_t size) {
  std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(rank));
  Buffer data(size);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}
// Floats that round differently in every order.
Buffer floats_of(std::uint64_t seed, int rank, std::size_t count) {
  std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(rank));
  std::vector<float> values(count);
  for (float& value : values)
    value = std::ldexp(static_cast<float>(random() % 100003) - 50000.F, static_cast<int>(random() % 40) - 20);
  const ByteView view = bytes_of(std::as_const(values));
  return {view.begin(), view.end()};
}
// What one process gets that folds all ranks' floats in rank order.
Buffer folded_floats(std::uint64_t seed, int ranks, std::size_t count, ReduceOp op) {
  std::vector<Buffer> inputs;
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(floats_of(seed, rank, count));
  for (const Buffer& input : inputs) sources.push_back(input.data());
  Buffer out(count * sizeof(float));
  std::byte* to = out.data();
  fold({.type = DType::kFloat32, .op = op, .ranks = ranks}, sources, {&to, 1}, count);
  return out;
}

bool same(ByteView a, ByteView b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

constexpr int kAllWorlds[] = {2, 3, 8, 1, 5};
constexpr std::span<const int> kWorlds(kAllWorlds, lockstep::testing::kSanitized ? 3 : std::size(kAllWorlds));
constexpr std::size_t kAllCounts[] = {0, 17, 4097, 1, 1000, 9001};
constexpr std::span<const std::size_t> kCounts(kAllCounts,
                                               lockstep::testing::kSanitized ? 3 : std::size(kAllCounts));
constexpr Memory kMemories[] = {Memory::kForeign, Memory::kResident, Memory::kMixed};

template <typename Body>
void for_every_world(Body body) {
  for (const int size : kWorlds) {
    for (const Memory memory : kMemories) {
      SCOPED_TRACE(cat(size, " ranks, memory ", static_cast<int>(memory)));
      run_world(size, memory, body);
    }
  }
}

TEST(Local, AllReduceIsALeftFoldOnEveryRank) {
  for_every_world([](LocalMember& member) {
    for (const std::size_t count : kCounts) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
        const ByteSpan data = member.buffer(floats_of(count, member.rank(), count));
        ASSERT_OK(local_all_reduce(member.call(OpKind::kAllReduce, DType::kFloat32, count, -1, op), data));
        ASSERT_TRUE(same(data, folded_floats(count, member.size(), count, op)))
            << count << " floats, " << name_of(op);
      }
    }
  });
}

TEST(Local, ReduceGivesTheFoldToTheRootAlone) {
  for_every_world([](LocalMember& member) {
    for (const std::size_t count : kCounts) {
      const int root = static_cast<int>(count) % member.size();
      const Buffer own = floats_of(count, member.rank(), count);
      const ByteSpan data = member.buffer(own);
      ASSERT_OK(local_reduce(member.call(OpKind::kReduce, DType::kFloat32, count, root), data, data));
      const bool is_root = member.rank() == root;
      ASSERT_TRUE(same(data, is_root ? folded_floats(count, member.size(), count, ReduceOp::kSum) : own));
    }
  });
}

TEST(Local, ReduceScatterGivesEveryRankItsPart) {
  for_every_world([](LocalMember& member) {
    for (const std::size_t count : kCounts) {
      const std::size_t all = count * static_cast<std::size_t>(member.size());
      const ByteSpan input = member.buffer(floats_of(count, member.rank(), all));
      const ByteSpan output = member.buffer(Buffer(count * 4));
      std::vector<ByteView> parts;
      for (int i = 0; i < member.size(); ++i)
        parts.push_back(input.subspan(static_cast<std::size_t>(i) * output.size(), output.size()));
      ASSERT_OK(
          local_reduce_scatter(member.call(OpKind::kReduceScatter, DType::kFloat32, count), parts, output));
      const Buffer expected = folded_floats(count, member.size(), all, ReduceOp::kSum);
      ASSERT_TRUE(same(output, ByteView(expected).subspan(static_cast<std::size_t>(member.rank()) * count * 4,
                                                          count * 4)));
    }
  });
}

TEST(Local, BroadcastCopiesTheRoot) {
  for_every_world([](LocalMember& member) {
    for (const std::size_t count : kCounts) {
      const int root = static_cast<int>(count) % member.size();
      const ByteSpan data = member.buffer(data_of(count, member.rank(), count));
      ASSERT_OK(local_broadcast(member.call(OpKind::kBroadcast, DType::kUint8, count, root), data));
      ASSERT_TRUE(same(data, data_of(count, root, count)));
      // The root may change its buffer at once.
      if (!data.empty()) std::memset(data.data(), 0xee, data.size());
    }
  });
}

TEST(Local, AllGatherAndGatherTakeUnevenSizes) {
  for_every_world([](LocalMember& member) {
    const auto size_at = [](std::size_t count, int rank) {
      return count * static_cast<std::size_t>(rank % 3) + count / 2;
    };
    for (const std::size_t count : kCounts) {
      for (const OpKind kind : {OpKind::kAllGather, OpKind::kGather}) {
        const int root = kind == OpKind::kGather ? member.size() - 1 : -1;
        const ByteSpan input = member.buffer(data_of(count, member.rank(), size_at(count, member.rank())));
        std::vector<ByteSpan> outputs;
        for (int rank = 0; rank < member.size(); ++rank)
          outputs.push_back(member.buffer(Buffer(size_at(count, rank))));
        const LocalCall call = member.call(kind, DType::kUint8, count, root);
        ASSERT_OK(kind == OpKind::kGather ? local_gather(call, input, outputs)
                                          : local_all_gather(call, input, outputs));
        if (kind == OpKind::kGather && member.rank() != root) continue;
        for (int rank = 0; rank < member.size(); ++rank) {
          ASSERT_TRUE(
              same(outputs[static_cast<std::size_t>(rank)], data_of(count, rank, size_at(count, rank))));
        }
      }
    }
  });
}

TEST(Local, ScatterAndAllToAllTakeUnevenSizes) {
  for_every_world([](LocalMember& member) {
    const auto size_at = [](std::size_t count, int from, int to) {
      return count * static_cast<std::size_t>((from + 2 * to) % 3) + count / 3;
    };
    const auto seed = [](int from, int to) {
      return static_cast<std::uint64_t>(from) * 100 + static_cast<std::uint64_t>(to);
    };
    for (const std::size_t count : kCounts) {
      std::vector<ByteView> inputs;
      std::vector<ByteSpan> outputs;
      for (int peer = 0; peer < member.size(); ++peer) {
        inputs.push_back(
            member.buffer(data_of(seed(member.rank(), peer), 0, size_at(count, member.rank(), peer))));
        outputs.push_back(member.buffer(Buffer(size_at(count, peer, member.rank()))));
      }
      ASSERT_OK(local_all_to_all(member.call(OpKind::kAllToAll, DType::kUint8, count), inputs, outputs));
      for (int peer = 0; peer < member.size(); ++peer) {
        ASSERT_TRUE(same(outputs[static_cast<std::size_t>(peer)],
                         data_of(seed(peer, member.rank()), 0, size_at(count, peer, member.rank()))));
      }
      const int root = member.size() / 2;
      const ByteSpan output = member.buffer(Buffer(size_at(count, root, member.rank())));
      ASSERT_OK(local_scatter(member.call(OpKind::kScatter, DType::kUint8, count, root), inputs, output));
      ASSERT_TRUE(same(output, data_of(seed(root, member.rank()), 0, size_at(count, root, member.rank()))));
    }
  });
}

TEST(Local, ADifferentCallIsADesyncOnEveryRank) {
  struct Case {
    const char* what;
    LocalCall (*call)(LocalMember&);
  };
  const Case kCases[] = {
      {"reduce op",
       [](LocalMember& m) { return m.call(OpKind::kAllReduce, DType::kFloat32, 4, -1, ReduceOp::kMax); }},
      {"dtype", [](LocalMember& m) { return m.call(OpKind::kAllReduce, DType::kInt32, 4); }},
      {"number of elements", [](LocalMember& m) { return m.call(OpKind::kAllReduce, DType::kFloat32, 3); }},
      {"operation", [](LocalMember& m) { return m.call(OpKind::kReduce, DType::kFloat32, 4); }},
  };
  for (const Case& c : kCases) {
    run_world(3, Memory::kForeign, [&c](LocalMember& member) {
      std::vector<float> data(4, 1.F);
      const LocalCall call =
          member.rank() == 1 ? c.call(member) : member.call(OpKind::kAllReduce, DType::kFloat32, 4);
      const Status status = local_all_reduce(call, bytes_of(data));
      EXPECT_EQ(status.failure(), Failure::kDesync) << status.text();
      EXPECT_THAT(std::string(status.message()), HasSubstr(c.what));
      EXPECT_THAT(data, ::testing::Each(1.F)) << "a partial result was written";
    });
  }
}

TEST(Local, AfterAFailureEveryCallSaysTheFirst) {
  run_world(2, Memory::kForeign, [](LocalMember& member) {
    if (member.rank() == 0) (void)member.board().fail(Status::disconnected("rank 9 died"));
    const Status first = local_barrier(member.call(OpKind::kBarrier));
    EXPECT_THAT(std::string(first.message()), HasSubstr("barrier #1: rank 9 died"));
    EXPECT_THAT(std::string(local_barrier(member.call(OpKind::kBarrier)).message()),
                HasSubstr("rank 9 died"));
  });
}

TEST(Slices, CoverEverythingOnceAtCacheLines) {
  for (const std::size_t element : {1U, 2U, 4U, 8U, 16U}) {
    for (const std::size_t count : {0U, 1U, 63U, 64U, 65U, 1000U, 4099U}) {
      for (const int parts : {1, 2, 3, 7, 64}) {
        std::size_t at = 0;
        for (int i = 0; i < parts; ++i) {
          const Slice slice = slice_of(count, element, parts, i);
          ASSERT_EQ(slice.begin, at);
          ASSERT_LE(slice.begin, slice.end);
          ASSERT_TRUE(slice.end == count || slice.end * element % 64 == 0);
          at = slice.end;
        }
        ASSERT_EQ(at, count);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::collective
