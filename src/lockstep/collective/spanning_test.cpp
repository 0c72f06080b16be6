// Every collective on every spread of ranks over hosts gives, bit by bit, what a plain fold in rank order
// gives.
#include "lockstep/collective/spanning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>

#include "lockstep/base/text.h"
#include "lockstep/collective/execute.h"
#include "lockstep/collective/selection.h"
#include "lockstep/testing/communicator_world.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::collective {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::CommunicatorWorld;
using ::testing::HasSubstr;
using transport::Communicator;
using transport::Layout;

// The first ones have one of everything: a host alone, ranks alone on theirs, hosts of two, ranks that are
// not contiguous, and a host in the middle.
const std::vector<std::vector<int>> kAllLayouts = {
    {0, 0, 0},       {0, 1},          {0, 0, 1, 1},
    {0, 1, 0, 1},    {0, 1, 1, 2},    {0},
    {0, 1, 2},       {0, 0, 1},       {0, 0, 0, 1, 1, 1, 1, 1},
    {0, 1, 2, 3, 3}, {0, 0, 1, 2, 0}, {0, 0, 1, 1, 2, 2, 3, 3},
};
const std::span<const std::vector<int>> kLayouts(kAllLayouts.data(),
                                                 lockstep::testing::kSanitized ? 5 : kAllLayouts.size());
constexpr std::size_t kSpanningCounts[] = {0, 1, 17, 1000, 40961};

struct Kind {
  DType dtype;
  ReduceOp op;
};
constexpr Kind kAllKinds[] = {
    {DType::kFloat32, ReduceOp::kSum},       {DType::kBFloat16, ReduceOp::kAvg},
    {DType::kFloat16, ReduceOp::kSum},       {DType::kFloat64, ReduceOp::kPremulSum},
    {DType::kComplex64, ReduceOp::kProduct}, {DType::kInt32, ReduceOp::kBxor},
    {DType::kBool, ReduceOp::kMax},          {DType::kUint8, ReduceOp::kSum}};
constexpr std::span<const Kind> kKinds(kAllKinds, lockstep::testing::kSanitized ? 2 : std::size(kAllKinds));

// Arbitrary bits, but for bools: NaN, infinities and denormals of every type are among them.
Buffer bits(DType dtype, std::size_t count, std::uint64_t seed) {
  Buffer bytes(count * size_of(dtype));
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t eight = dtype == DType::kBool ? random() & 0x0101010101010101U : random();
    std::memcpy(&bytes[i], &eight, std::min(sizeof eight, bytes.size() - i));
  }
  return bytes;
}

double factor_of(int rank) { return 0.5 + rank; }
std::uint64_t seed_of(std::size_t count, int rank) { return count * 1000 + static_cast<std::uint64_t>(rank); }

// The ranks' inputs, in their order.
Buffer folded(const Kind& kind, const std::vector<Buffer>& inputs) {
  std::vector<const std::byte*> sources;
  std::vector<double> factors;
  for (const Buffer& input : inputs) {
    factors.push_back(factor_of(static_cast<int>(sources.size())));
    sources.push_back(input.data());
  }
  Buffer out(inputs[0].size());
  std::byte* const to = out.data();
  const int ranks = static_cast<int>(inputs.size());
  fold({.type = kind.dtype, .op = kind.op, .ranks = ranks, .factors = factors}, sources, {&to, 1},
       out.size() / size_of(kind.dtype));
  return out;
}

Buffer folded(const Kind& kind, std::size_t count, int ranks) {
  std::vector<Buffer> inputs;
  for (int i = 0; i < ranks; ++i) inputs.push_back(bits(kind.dtype, count, seed_of(count, i)));
  return folded(kind, inputs);
}

// One rank's way through a number of operations.
class SpanningMember {
 public:
  explicit SpanningMember(Communicator& communicator) : communicator_(communicator) {}

  int rank() const { return communicator_.position(); }
  int size() const { return communicator_.size(); }
  Status run(const Call& call) {
    LOCKSTEP_TRY(check(call, Rank{rank()}, WorldSize{size()}));
    return execute(communicator_, call, fingerprint_of(call, 1, ++sequence_), Clock::steady().in(60s),
                   Means::none());
  }

 private:
  Communicator& communicator_;
  std::uint64_t sequence_ = 0;
};

void on_every_layout(const std::function<void(SpanningMember&)>& body) {
  for (const std::vector<int>& hosts : kLayouts) {
    SCOPED_TRACE(::testing::PrintToString(hosts));
    CommunicatorWorld(hosts).run([&body](Communicator& communicator) {
      SpanningMember member(communicator);
      body(member);
    });
  }
}

TEST(Spanning, AllReduceIsAFoldInRankOrder) {
  on_every_layout([](SpanningMember& member) {
    for (const Kind& kind : kKinds) {
      for (const std::size_t count : kSpanningCounts) {
        Buffer data = bits(kind.dtype, count, seed_of(count, member.rank()));
        const ByteSpan output = data;
        ASSERT_OK(member.run({.kind = OpKind::kAllReduce,
                              .dtype = kind.dtype,
                              .reduce_op = kind.op,
                              .factor = factor_of(member.rank()),
                              .outputs = {&output, 1}}));
        ASSERT_EQ(data, folded(kind, count, member.size())) << name_of(kind.dtype) << " x " << count;
      }
    }
  });
}

TEST(Spanning, ReduceGivesTheRootTheSameFold) {
  on_every_layout([](SpanningMember& member) {
    for (const Kind& kind : kKinds.first(std::min<std::size_t>(kKinds.size(), 4))) {
      for (const std::size_t count : kSpanningCounts) {
        const Rank root{static_cast<int>(count) % member.size()};
        const Buffer own = bits(kind.dtype, count, seed_of(count, member.rank()));
        Buffer result(own.size());
        const ByteView input = own;
        const ByteSpan output = result;
        const bool is_root = root.value == member.rank();
        ASSERT_OK(member.run({.kind = OpKind::kReduce,
                              .dtype = kind.dtype,
                              .reduce_op = kind.op,
                              .factor = factor_of(member.rank()),
                              .root = root,
                              .inputs = {&input, 1},
                              .outputs = is_root ? std::span(&output, 1) : std::span<const ByteSpan>()}));
        if (!is_root) continue;
        ASSERT_EQ(result, folded(kind, count, member.size())) << name_of(kind.dtype) << " x " << count;
      }
    }
  });
}

// The root alone knew that its result goes where its input lies, and went another way than its neighbours.
TEST(Spanning, AReduceInPlaceOfResidentBuffersGivesTheRootTheSameFold) {
  for (const std::vector<int>& hosts : {std::vector{0, 0, 1, 1}, {0, 0, 0, 1, 1, 1, 1, 1}, {0, 1, 1, 2}}) {
    SCOPED_TRACE(::testing::PrintToString(hosts));
    CommunicatorWorld(hosts).run([](Communicator& communicator) {
      SpanningMember member(communicator);
      const Kind kind{DType::kFloat32, ReduceOp::kSum};
      for (const std::size_t count : {1000, 40961}) {  // in one window, and in many
        for (int root = 0; root < member.size(); ++root) {
          const Buffer own = bits(kind.dtype, count, seed_of(count, member.rank()));
          auto& heap = communicator.board().domain().heap();
          const auto range = heap.allocate(Bytes{own.size()});
          ASSERT_OK(range.status());
          std::ranges::copy(own, range->data);
          const ByteSpan output(range->data, own.size());
          const ByteView input = output;
          const bool is_root = root == member.rank();
          ASSERT_OK(member.run({.kind = OpKind::kReduce,
                                .dtype = kind.dtype,
                                .reduce_op = kind.op,
                                .root = Rank{root},
                                .inputs = {&input, 1},
                                .outputs = is_root ? std::span(&output, 1) : std::span<const ByteSpan>()}));
          const Buffer expected = is_root ? folded(kind, count, member.size()) : own;
          ASSERT_TRUE(std::ranges::equal(output, expected)) << "root " << root << " x " << count;
          ASSERT_OK(member.run({.kind = OpKind::kBarrier}));  // nobody frees what another one still reads
          heap.free(range->offset);
        }
      }
    });
  }
}

// Part r of every rank's input, of its own size.
std::size_t part_size(std::size_t count, int part) { return count / 2 + static_cast<std::size_t>(part) * 3; }

TEST(Spanning, ReduceScatterGivesEveryRankItsPartOfTheFold) {
  on_every_layout([](SpanningMember& member) {
    const Kind kind{DType::kFloat32, ReduceOp::kSum};
    for (const std::size_t count : kSpanningCounts) {
      std::vector<Buffer> parts;
      std::vector<ByteView> inputs;
      for (int r = 0; r < member.size(); ++r) {
        const std::size_t size = part_size(count, r);
        parts.push_back(bits(kind.dtype, size, seed_of(size, member.rank())));
      }
      for (const Buffer& part : parts) inputs.emplace_back(part);
      const std::size_t own = part_size(count, member.rank());
      Buffer result(own * 4);
      const ByteSpan output = result;
      ASSERT_OK(member.run({.kind = OpKind::kReduceScatter,
                            .dtype = kind.dtype,
                            .reduce_op = kind.op,
                            .inputs = inputs,
                            .outputs = {&output, 1}}));
      ASSERT_EQ(result, folded(kind, own, member.size())) << count;
    }
  });
}

// Hosts of so many ranks that what each gets goes along the chain; there may be nothing for a whole host.
TEST(Spanning, ReduceScatterOfManyRanksIsAFoldInRankOrder) {
  constexpr std::size_t kCount = 40'961;
  for (const std::vector<int>& hosts : {std::vector{0, 0, 0, 1, 1, 1}, std::vector{0, 1, 1, 1, 1, 1, 2, 2}}) {
    SCOPED_TRACE(::testing::PrintToString(hosts));
    for (const int without : {-1, 0, 1}) {
      const auto count_of = [&](int rank) {
        if (hosts[static_cast<std::size_t>(rank)] == without) return std::size_t{0};
        return kCount - static_cast<std::size_t>(rank) * 1001;
      };
      const auto seed = [](int rank, int part) {
        return std::uint64_t{100} * static_cast<std::uint64_t>(rank) + static_cast<std::uint64_t>(part);
      };
      CommunicatorWorld(hosts).run([&](Communicator& communicator) {
        SpanningMember member(communicator);
        for (const Kind& kind : kKinds) {
          std::vector<Buffer> parts;
          for (int r = 0; r < member.size(); ++r)
            parts.push_back(bits(kind.dtype, count_of(r), seed(member.rank(), r)));
          const std::vector<ByteView> inputs(parts.begin(), parts.end());
          Buffer result(parts[static_cast<std::size_t>(member.rank())].size());
          const ByteSpan output = result;
          ASSERT_OK(member.run({.kind = OpKind::kReduceScatter,
                                .dtype = kind.dtype,
                                .reduce_op = kind.op,
                                .factor = factor_of(member.rank()),
                                .inputs = inputs,
                                .outputs = {&output, 1}}));
          std::vector<Buffer> contributions;
          for (int r = 0; r < member.size(); ++r)
            contributions.push_back(bits(kind.dtype, count_of(member.rank()), seed(r, member.rank())));
          ASSERT_EQ(result, folded(kind, contributions)) << name_of(kind.dtype) << " without " << without;
        }
      });
    }
  }
}

TEST(Spanning, BroadcastGivesEveryRankTheRootsBytes) {
  on_every_layout([](SpanningMember& member) {
    for (const std::size_t count : {0, 1, 1000, 1'200'000}) {
      const Rank root{static_cast<int>(count + 1) % member.size()};
      Buffer data = bits(DType::kUint8, count, seed_of(count, member.rank()));
      const ByteSpan output = data;
      ASSERT_OK(member.run({.kind = OpKind::kBroadcast, .root = root, .outputs = {&output, 1}}));
      ASSERT_EQ(data, bits(DType::kUint8, count, seed_of(count, root.value)));
    }
  });
}

TEST(Spanning, GathersBringEveryRanksBytesTogether) {
  on_every_layout([](SpanningMember& member) {
    for (const OpKind kind : {OpKind::kAllGather, OpKind::kGather}) {
      for (const std::size_t count : kSpanningCounts) {
        const Rank root{static_cast<int>(count) % member.size()};
        const std::size_t own = part_size(count, member.rank());
        const Buffer mine = bits(DType::kUint8, own, seed_of(own, member.rank()));
        std::vector<Buffer> results;
        std::vector<ByteSpan> outputs;
        for (int r = 0; r < member.size(); ++r) results.emplace_back(part_size(count, r));
        for (Buffer& result : results) outputs.emplace_back(result);
        const ByteView input = mine;
        const bool takes = kind == OpKind::kAllGather || root.value == member.rank();
        ASSERT_OK(member.run(
            {.kind = kind,
             .root = root,
             .inputs = {&input, 1},
             .outputs = takes ? std::span<const ByteSpan>(outputs) : std::span<const ByteSpan>()}));
        for (int r = 0; takes && r < member.size(); ++r) {
          const std::size_t size = part_size(count, r);
          ASSERT_EQ(results[static_cast<std::size_t>(r)], bits(DType::kUint8, size, seed_of(size, r)));
        }
      }
    }
  });
}

TEST(Spanning, ScatterAndAllToAllBringEveryPartToItsRank) {
  on_every_layout([](SpanningMember& member) {
    for (const OpKind kind : {OpKind::kScatter, OpKind::kAllToAll}) {
      for (const std::size_t count : kSpanningCounts) {
        const Rank root{static_cast<int>(count) % member.size()};
        const auto size_at = [&](int from, int to) { return part_size(count, (from * 3 + to * 5) % 7); };
        const auto from_to = [&](int from, int to) {
          return bits(DType::kUint8, size_at(from, to), seed_of(count, from * 100 + to));
        };
        std::vector<Buffer> parts;
        std::vector<ByteView> inputs;
        for (int r = 0; r < member.size(); ++r) parts.push_back(from_to(member.rank(), r));
        for (const Buffer& part : parts) inputs.emplace_back(part);
        const bool to_all = kind == OpKind::kAllToAll;
        if (!to_all && root.value != member.rank()) inputs.clear();
        std::vector<Buffer> results;
        std::vector<ByteSpan> outputs;
        for (int r = 0; r < member.size(); ++r) {
          if (to_all || r == root.value) results.emplace_back(size_at(r, member.rank()));
        }
        for (Buffer& result : results) outputs.emplace_back(result);
        ASSERT_OK(member.run({.kind = kind, .root = root, .inputs = inputs, .outputs = outputs}));
        for (int r = 0; r < member.size(); ++r) {
          if (!to_all && r != root.value) continue;
          const auto at = static_cast<std::size_t>(to_all ? r : 0);
          ASSERT_EQ(results[at], from_to(r, member.rank()));
        }
      }
    }
  });
}

TEST(Spanning, BuffersThatTravelTogetherAreEachReduced) {
  on_every_layout([](SpanningMember& member) {
    const Kind kind{DType::kFloat32, ReduceOp::kSum};
    std::vector<Buffer> buffers;
    std::vector<ByteSpan> outputs;
    for (const std::size_t count : kSpanningCounts)
      buffers.push_back(bits(kind.dtype, count, seed_of(count, member.rank())));
    for (Buffer& buffer : buffers) outputs.emplace_back(buffer);
    ASSERT_OK(member.run(
        {.kind = OpKind::kAllReduce, .dtype = kind.dtype, .reduce_op = kind.op, .outputs = outputs}));
    std::size_t b = 0;
    for (const std::size_t count : kSpanningCounts)
      ASSERT_EQ(buffers[b++], folded(kind, count, member.size()));
    ASSERT_OK(member.run({.kind = OpKind::kBarrier}));
  });
}

TEST(Spanning, EncryptedAndManyStreamsGiveTheSame) {
  for (const auto& options : {CommunicatorWorld::Options{.streams = 3},
                              CommunicatorWorld::Options{.protection = transport::Protection::kSealed}}) {
    CommunicatorWorld({0, 0, 1, 1, 2}, options).run([](Communicator& communicator) {
      SpanningMember member(communicator);
      const Kind kind{DType::kFloat32, ReduceOp::kSum};
      const std::size_t count = 100'001;
      Buffer data = bits(kind.dtype, count, seed_of(count, member.rank()));
      const ByteSpan output = data;
      ASSERT_OK(member.run(
          {.kind = OpKind::kAllReduce, .dtype = kind.dtype, .reduce_op = kind.op, .outputs = {&output, 1}}));
      ASSERT_EQ(data, folded(kind, count, member.size()));
    });
  }
}

TEST(Spanning, ADifferentCallIsADesyncThatEveryRankQuotes) {
  for (const std::vector<int>& hosts : kLayouts) {
    if (hosts.size() < 3) continue;
    SCOPED_TRACE(::testing::PrintToString(hosts));
    CommunicatorWorld(hosts).run([](Communicator& communicator) {
      SpanningMember member(communicator);
      std::vector<float> data(100'000, 1.F);
      const ByteSpan output = std::as_writable_bytes(std::span(data));
      const Status status = member.run({.kind = OpKind::kAllReduce,
                                        .dtype = DType::kFloat32,
                                        .reduce_op = member.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum,
                                        .outputs = {&output, 1}});
      EXPECT_EQ(status.failure(), Failure::kDesync) << status.text();
      EXPECT_THAT(std::string(status.message()), HasSubstr("reduce op"));
      // Nobody gets a sum that has another rank's maximum in it.
      EXPECT_EQ(member.run({.kind = OpKind::kBarrier}).failure(), Failure::kDesync);
    });
  }
}

TEST(Selection, OnOneHostFollowsTheTable) {
  EXPECT_EQ(select_local_all_reduce(4 << 10, 2, 8 << 10), LocalWay::kOneShot);
  EXPECT_EQ(select_local_all_reduce(64 << 20, 2, 8 << 10), LocalWay::kOneShot);
  EXPECT_EQ(select_local_all_reduce(4 << 10, 8, 32 << 10), LocalWay::kOneShot);
  EXPECT_EQ(select_local_all_reduce(1 << 20, 8, 32 << 10), LocalWay::kTwoShot);
  // At the border: what one more round could read, shared by all but two.
  EXPECT_EQ(select_local_all_reduce(8192, 3, 8192), LocalWay::kOneShot);
  EXPECT_EQ(select_local_all_reduce(8193, 3, 8192), LocalWay::kTwoShot);
  EXPECT_EQ(select_local_all_reduce(1365, 8, 8192), LocalWay::kOneShot);
  EXPECT_EQ(select_local_all_reduce(1366, 8, 8192), LocalWay::kTwoShot);
  EXPECT_EQ(select_local_all_reduce(0, 3, 0), LocalWay::kOneShot);
  EXPECT_EQ(select_local_all_reduce(1, 3, 0), LocalWay::kTwoShot);
  EXPECT_EQ(select_local_all_reduce(1, 1, 0), LocalWay::kOneShot);
}

TEST(Selection, InPlaceWhereReadingCostsMoreThanARound) {
  struct Row {
    int ranks;
    std::size_t round_bytes;
    std::size_t most;  // bytes that are staged
  };
  for (const Row& row : {Row{1, 8192, 8192}, Row{2, 8192, 8192}, Row{3, 8192, 4096}, Row{4, 8192, 2730},
                         Row{9, 8192, 1024}, Row{2, 0, 0}}) {
    EXPECT_FALSE(folds_in_place(0, row.ranks, row.round_bytes)) << row.ranks;
    EXPECT_FALSE(folds_in_place(row.most, row.ranks, row.round_bytes)) << row.ranks;
    EXPECT_TRUE(folds_in_place(row.most + 1, row.ranks, row.round_bytes)) << row.ranks;
    EXPECT_TRUE(folds_in_place(std::size_t{64} << 20, row.ranks, row.round_bytes)) << row.ranks;
  }
}

TEST(Selection, BetweenHostsFollowsTheTable) {
  const auto way = [](std::vector<int> hosts, std::size_t bytes) {
    return select_all_reduce(bytes, Layout::of(std::span<const int>(hosts)));
  };
  EXPECT_EQ(way({0, 1}, 64), SpanningWay::kSwap);
  EXPECT_EQ(way({0, 1}, 64 << 20), SpanningWay::kSwap);
  EXPECT_EQ(way({0, 0, 1, 1}, 64), SpanningWay::kRaw);
  EXPECT_EQ(way({0, 1, 0, 1}, 64), SpanningWay::kRaw);
  EXPECT_EQ(way({0, 0, 1, 1}, 1 << 20), SpanningWay::kChain);
  EXPECT_EQ(way({0, 1, 2}, 1 << 20), SpanningWay::kChain);
  EXPECT_EQ(way({0, 1, 0, 1}, 1 << 20), SpanningWay::kExchange);
  // At the border: 64 KiB of contributions.
  EXPECT_EQ(way({0, 0, 1, 1}, 16 << 10), SpanningWay::kRaw);
  EXPECT_EQ(way({0, 0, 1, 1}, (16 << 10) + 1), SpanningWay::kChain);
  EXPECT_EQ(way({0, 1, 0, 1}, 16 << 10), SpanningWay::kRaw);
  EXPECT_EQ(way({0, 1, 0, 1}, (16 << 10) + 1), SpanningWay::kExchange);
  EXPECT_EQ(way({0, 1, 2}, 21'845), SpanningWay::kRaw);
  EXPECT_EQ(way({0, 1, 2}, 21'846), SpanningWay::kChain);
  EXPECT_EQ(way({0, 1, 2}, 0), SpanningWay::kRaw);
  EXPECT_EQ(way({0, 1}, 0), SpanningWay::kSwap);
}

TEST(Selection, ReduceScatterGoesTheWayOfFewerBytes) {
  const auto way = [](std::vector<int> hosts, std::size_t bytes, std::size_t carry = 1) {
    return select_reduce_scatter(bytes, carry, Layout::of(std::span<const int>(hosts)));
  };
  const std::vector<int> three_each{0, 0, 0, 1, 1, 1};
  EXPECT_EQ(way(three_each, 64 << 10), SpanningWay::kExchange);
  EXPECT_EQ(way(three_each, (64 << 10) + 1), SpanningWay::kChain);  // 3/2·S, and S along the chain
  EXPECT_EQ(way({0, 1, 0, 1, 0, 1}, 1 << 20), SpanningWay::kExchange);
  EXPECT_EQ(way({0, 1}, 1 << 20), SpanningWay::kExchange);              // 1/2·S
  EXPECT_EQ(way({0, 0, 1, 1}, 1 << 20), SpanningWay::kExchange);        // S either way
  EXPECT_EQ(way({0, 0, 1, 1, 2, 2}, 1 << 20), SpanningWay::kExchange);  // 4/3·S either way
  EXPECT_EQ(way({0, 0, 0, 1, 1, 1, 1, 1}, 1 << 20), SpanningWay::kChain);
  EXPECT_EQ(way({0, 1, 1, 1, 1, 1, 2, 2}, 1 << 20), SpanningWay::kChain);  // 15/8·S and 4/3·S
  // 16-bit floats, whose running value is twice as large.
  EXPECT_EQ(way(three_each, 1 << 20, 2), SpanningWay::kExchange);
  EXPECT_EQ(way({0, 0, 0, 0, 0, 1, 1, 1, 1, 1}, 1 << 20, 2), SpanningWay::kChain);
}

}  // namespace
}  // namespace lockstep::collective
