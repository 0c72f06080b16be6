// Random operations on random worlds give, bit by bit, what one process gets that folds in rank order.
//
//   property_test [--seeds N] [--first N]     by default a few seeds; each is one world and its operations
//
// What must not be left to chance goes by turns: worlds of every size, the layouts that have a name, and the
// pairs of a type and an operation.
// The expectation is a plain loop over elements and ranks (reduction_test_support.h). A NaN's payload is the
// one thing that this does not say: in those bits the library's own fold in one process is the expectation.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/collective/execute.h"
#include "lockstep/collective/helpers_test_support.h"
#include "lockstep/collective/reduction_test_support.h"
#include "lockstep/testing/communicator_world.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::collective {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::CommunicatorWorld;
using transport::Communicator;

constexpr std::uint64_t kSeeds = 20;    // these see everything that goes by turns
constexpr std::size_t kReductions = 6;  // of a world's operations
constexpr std::size_t kMoves = 5;
constexpr int kMostRanks = 9;
constexpr std::size_t kLarge = 1'200'011;  // bytes: enough for several threads

std::uint64_t first_seed = 1;
std::uint64_t seeds = lockstep::testing::kSanitized ? 2 : kSeeds;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(engine_() % limit); }
  std::uint64_t bits() { return engine_(); }
  template <typename T, std::size_t kSize>
  T one_of(const T (&choices)[kSize]) {
    return choices[below(kSize)];
  }

 private:
  std::mt19937_64 engine_;
};

// 4x2, not contiguous, 3+5, 2x4, 1x8.
const std::vector<int> kNamedLayouts[] = {{0, 0, 1, 1, 2, 2, 3, 3},
                                          {0, 1, 0, 1, 0, 1},
                                          {0, 0, 0, 1, 1, 1, 1, 1},
                                          {0, 0, 0, 0, 1, 1, 1, 1},
                                          {0, 0, 0, 0, 0, 0, 0, 0}};

// The host of each rank: the named layouts first, then worlds of 1 to 9 ranks, then any.
std::vector<int> hosts_of(std::uint64_t seed, Random& random) {
  const std::uint64_t turn = (seed - 1) % kSeeds;
  constexpr std::uint64_t kNamed = std::size(kNamedLayouts);
  if (turn < kNamed) return kNamedLayouts[turn];
  std::vector<int> hosts(turn < kNamed + kMostRanks ? turn - kNamed + 1 : 1 + random.below(kMostRanks));
  const std::size_t most = 1 + random.below(4);
  for (int& host : hosts) host = static_cast<int>(random.below(most));
  // Hosts whose ranks follow each other are the usual case.
  if (random.below(2) == 0) std::sort(hosts.begin(), hosts.end());
  return hosts;
}

// Threads that a rank of the world has: in every fifth world 2, 3 or 4 by turns, and one operation is large.
int threads_of(std::uint64_t seed) { return seed % 5 == 0 ? 2 + static_cast<int>(seed / 5 % 3) : 1; }
// On one host every thread finds work; between hosts the pieces may be too small.
bool all_must_help(std::uint64_t seed) { return (seed - 1) % kSeeds == std::size(kNamedLayouts) - 1; }

// Every type with every operation that it has.
using Pair = std::pair<DType, ReduceOp>;
const std::vector<Pair>& all_pairs() {
  static const std::vector<Pair> kPairs = [] {
    std::vector<Pair> pairs;
    for (int i = 0; i < kDTypes * kReduceOps; ++i) {
      const Pair pair(static_cast<DType>(i / kReduceOps), static_cast<ReduceOp>(i % kReduceOps));
      if (check_reducible(pair.first, pair.second).ok()) pairs.push_back(pair);
    }
    return pairs;
  }();
  return kPairs;
}
const Pair& pair_of(std::uint64_t seed, std::size_t reduction) {
  return all_pairs()[((seed - 1) * kReductions + reduction) % all_pairs().size()];
}

// What all ranks know of an operation.
struct Plan {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::vector<std::size_t> counts;  // elements of each buffer that travels; of its parts, where they are even
  bool uneven = false;
  std::uint64_t seed = 0;       // of the contents
  std::uint64_t resident = 0;   // a bit for each rank
  std::uint64_t odd_modes = 0;  // likewise: its floating point mode is another
  bool side_by_side = false;    // the parts of an input, in memory
  bool in_place = false;        // a reduce: the root's result goes where its input lies
};

void choose_the_rest(Plan& plan, Random& random, int ranks) {
  static constexpr std::size_t kSizes[] = {0, 1, 2, 63, 64, 65, 1001, 4096, 20'011, 70'001};
  plan.root = static_cast<int>(random.below(static_cast<std::size_t>(ranks)));
  const bool alone = plan.kind == OpKind::kAllToAll;  // has no form with several buffers
  const std::size_t buffers = !alone && random.below(3) == 0 ? 2 + random.below(4) : 1;
  for (std::size_t b = 0; b < buffers; ++b) plan.counts.push_back(random.one_of(kSizes));
  plan.uneven = random.below(2) == 0;
  plan.seed = random.bits();
  plan.resident = random.one_of({std::uint64_t{0}, ~std::uint64_t{0}, random.bits()});
  plan.odd_modes = random.bits() & random.bits();
  plan.side_by_side = random.below(2) == 0;
  plan.in_place = random.below(2) == 0;
}

std::vector<Plan> plans_of(std::uint64_t seed, Random& random, int ranks) {
  static constexpr OpKind kReducing[] = {OpKind::kAllReduce, OpKind::kAllReduce, OpKind::kReduce,
                                         OpKind::kReduceScatter};
  static constexpr OpKind kMoving[] = {OpKind::kBroadcast, OpKind::kAllGather, OpKind::kScatter,
                                       OpKind::kGather, OpKind::kAllToAll};
  std::vector<Plan> plans;
  for (std::size_t i = 0; i < kReductions; ++i) {
    const auto [dtype, op] = pair_of(seed, i);
    plans.push_back({.kind = random.one_of(kReducing), .dtype = dtype, .op = op});
  }
  for (std::size_t i = 0; i < kMoves; ++i)
    plans.push_back({.kind = random.one_of(kMoving), .dtype = static_cast<DType>(random.below(kDTypes))});
  for (Plan& plan : plans) choose_the_rest(plan, random, ranks);
  if (threads_of(seed) > 1) {
    plans[0].kind = OpKind::kAllReduce;
    plans[0].counts = {kLarge / size_of(plans[0].dtype)};
  }
  for (std::size_t i = plans.size(); i > 1; --i) std::swap(plans[i - 1], plans[random.below(i)]);
  return plans;
}

// How many elements rank `from` has for rank `to` in that buffer. Where all have the same for it, or it the
// same for all, the other one does not matter.
std::size_t count_of(const Plan& plan, std::size_t buffer, int from, int to) {
  const bool by_sender =
      plan.kind == OpKind::kAllGather || plan.kind == OpKind::kGather || plan.kind == OpKind::kAllToAll;
  const bool by_receiver =
      plan.kind == OpKind::kScatter || plan.kind == OpKind::kReduceScatter || plan.kind == OpKind::kAllToAll;
  if (!plan.uneven || (!by_sender && !by_receiver)) return plan.counts[buffer];
  const auto sender = static_cast<std::uint64_t>(by_sender ? from : 0);
  const auto receiver = static_cast<std::uint64_t>(by_receiver ? to : 0);
  return Random(plan.seed + buffer * 10'007 + sender * 100 + receiver).below(plan.counts[buffer] + 1);
}

// Arbitrary bits, but for bools: NaN, infinities, zeros of both signs and denormals are among them.
Buffer contents(const Plan& plan, std::size_t buffer, int rank, int part, std::size_t count) {
  Random random(plan.seed + buffer * 1009 + static_cast<std::uint64_t>(rank) * 17 +
                static_cast<std::uint64_t>(part) * 1'000'003);
  Buffer bytes(count * size_of(plan.dtype));
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t bits = random.bits();
    if (plan.dtype == DType::kBool) bits &= 0x0101010101010101U;
    if (random.below(16) == 0) bits &= 0x8000800080008000U;  // zeros
    std::memcpy(bytes.data() + at, &bits, std::min(sizeof(bits), bytes.size() - at));
  }
  return bytes;
}

double factor_of(DType dtype, int rank) { return is_real(dtype) ? 0.25 + rank : 1 + 2 * rank; }

Buffer expected_fold(const Plan& plan, std::size_t buffer, int ranks, int part, std::size_t count) {
  std::vector<Buffer> inputs;
  std::vector<double> factors;
  for (int i = 0; i < ranks; ++i) {
    inputs.push_back(contents(plan, buffer, i, part, count));
    factors.push_back(factor_of(plan.dtype, i));
  }
  std::vector<const std::byte*> sources;
  sources.reserve(inputs.size());
  for (const Buffer& input : inputs) sources.push_back(input.data());
  Buffer out(count * size_of(plan.dtype));
  std::byte* const to = out.data();
  const Fold how{.type = plan.dtype, .op = plan.op, .ranks = ranks, .factors = factors};
  fold(how, sources, {&to, 1}, count);
  EXPECT_TRUE(with_one_nan(plan.dtype, out) == with_one_nan(plan.dtype, reference(how, inputs, count)))
      << name_of(plan.op) << " on " << name_of(plan.dtype);
  return out;
}

// One rank's buffers in one operation, and what must be in them at the end.
class Operands {
 public:
  Operands(Communicator& communicator, const Plan& plan) : communicator_(communicator), plan_(plan) {
    for (std::size_t b = 0; b < plan.counts.size(); ++b) prepare(b);
  }
  ~Operands() {
    for (const std::uint64_t offset : offsets_) communicator_.board().domain().heap().free(offset);
  }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  Call call() const {
    return {.kind = plan_.kind,
            .dtype = plan_.dtype,
            .reduce_op = plan_.op,
            .factor = factor_of(plan_.dtype, own()),
            .root = Rank{plan_.root},
            .inputs = inputs_,
            .outputs = outputs_};
  }
  bool hold_what_they_should() const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (!std::equal(outputs_[i].begin(), outputs_[i].end(), expected_[i].begin(), expected_[i].end()))
        return false;
    }
    return true;
  }

 private:
  int own() const { return communicator_.position(); }

  // What `from` has for `to` in buffer b; `part` tells what it has for others apart.
  Buffer sent(std::size_t b, int from, int to, int part) const {
    return contents(plan_, b, from, part, count_of(plan_, b, from, to));
  }
  Buffer folded(std::size_t b, int part) const {
    return expected_fold(plan_, b, communicator_.size(), part, count_of(plan_, b, 0, part));
  }
  void take(const Buffer& before, Buffer after) {
    outputs_.push_back(place(before));
    expected_.push_back(std::move(after));
  }
  void take(Buffer after) {
    const Buffer empty(after.size());
    take(empty, std::move(after));
  }
  // Parts 0 to `parts`: one for each rank, or one for all.
  void give(std::size_t b, int parts) {
    std::vector<Buffer> all;
    Buffer whole;
    for (int part = 0; part < parts; ++part) {
      all.push_back(sent(b, own(), part, part));
      whole.insert(whole.end(), all.back().begin(), all.back().end());
    }
    if (!plan_.side_by_side) {
      for (const Buffer& part : all) inputs_.push_back(place(part));
      return;
    }
    const ByteView placed = place(whole);
    for (std::size_t at = 0; const Buffer& part : all) {
      inputs_.push_back(placed.subspan(at, part.size()));
      at += part.size();
    }
  }

  void prepare(std::size_t b) {
    const int ranks = communicator_.size();
    const bool root = own() == plan_.root;
    switch (plan_.kind) {
      case OpKind::kBroadcast:
        return take(sent(b, own(), 0, 0), sent(b, plan_.root, 0, 0));
      case OpKind::kReduce:
        if (root && plan_.in_place) {
          take(sent(b, own(), 0, 0), folded(b, 0));
          inputs_.emplace_back(outputs_.back());
          return;
        }
        give(b, 1);
        if (root) take(folded(b, 0));
        return;
      case OpKind::kReduceScatter:
        give(b, ranks);
        return take(folded(b, own()));
      case OpKind::kAllGather:
      case OpKind::kGather:
        give(b, 1);
        for (int peer = 0; (root || plan_.kind == OpKind::kAllGather) && peer < ranks; ++peer)
          take(sent(b, peer, 0, 0));
        return;
      case OpKind::kScatter:
        if (root) give(b, ranks);
        return take(sent(b, plan_.root, own(), own()));
      case OpKind::kAllToAll:
        give(b, ranks);
        for (int peer = 0; peer < ranks; ++peer) take(sent(b, peer, own(), own()));
        return;
      default:
        return take(sent(b, own(), 0, 0), folded(b, 0));
    }
  }

  ByteSpan place(const Buffer& bytes) {
    if ((plan_.resident >> static_cast<unsigned>(own()) & 1U) == 0 || bytes.empty()) {
      foreign_.push_back(bytes);
      return foreign_.back();
    }
    const auto range = communicator_.board().domain().heap().allocate(Bytes{bytes.size()});
    LOCKSTEP_CHECK(range.ok(), range.status().text());
    offsets_.push_back(range->offset);
    std::memcpy(range->data, bytes.data(), bytes.size());
    return {range->data, bytes.size()};
  }

  Communicator& communicator_;
  const Plan& plan_;
  std::deque<Buffer> foreign_;
  std::vector<std::uint64_t> offsets_;
  std::vector<ByteView> inputs_;
  std::vector<ByteSpan> outputs_;
  std::vector<Buffer> expected_;
};

std::string describe(const Plan& plan) {
  return cat(name_of(plan.kind), ", ", name_of(plan.dtype), ", ", name_of(plan.op), ", counts ",
             ::testing::PrintToString(plan.counts), plan.uneven ? ", uneven" : "",
             plan.in_place ? ", in place" : "");
}

// The most threads that have worked together for a rank.
int run_world(std::uint64_t seed) {
  Random random(seed);
  const std::vector<int> hosts = hosts_of(seed, random);
  const int ranks = static_cast<int>(hosts.size());
  const std::vector<Plan> plans = plans_of(seed, random, ranks);
  Crowd helpers(threads_of(seed));
  SCOPED_TRACE(cat("property_test --seeds 1 --first ", seed, ", hosts ", ::testing::PrintToString(hosts),
                   ", ", helpers.count(), " threads"));
  const auto way = [&] { return random.below(2) == 0 ? CopyWay::kCached : CopyWay::kPastCache; };
  const Means means{.tuning = {.copy_ways = {way(), way(), way()}, .round_bytes = random.below(1 << 18)},
                    .helpers = helpers};
  const CommunicatorWorld::Options options{
      .staging = helpers.count() > 1 ? Bytes::mib(1)
                                     : random.one_of({Bytes::kib(16), Bytes::kib(64), Bytes::mib(1)}),
      .streams = 1 + static_cast<int>(random.below(3)),
      .payload =
          random.below(4) == 0 ? transport::shm::PayloadChecks::kOn : transport::shm::PayloadChecks::kOff};
  CommunicatorWorld(hosts, options).run([&](Communicator& communicator) {
    std::uint64_t sequence = 0;
    for (const Plan& plan : plans) {
      Operands operands(communicator, plan);
      const Call call = operands.call();
      ASSERT_OK(check(call, Rank{communicator.position()}, WorldSize{ranks}));
      // Rounds upwards, and takes denormals for zero: what the caller likes must not reach the result.
      const unsigned mode = _mm_getcsr();
      const bool odd = (plan.odd_modes >> static_cast<unsigned>(communicator.position()) & 1U) != 0;
      const unsigned callers = odd ? mode | 0x8040U | 0x4000U : mode;
      _mm_setcsr(callers);
      const Status status =
          execute(communicator, call, fingerprint_of(call, 1, ++sequence), Clock::steady().in(60s), means);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(mode);
      ASSERT_OK(status) << describe(plan);
      ASSERT_EQ(after & ~0x3FU, callers & ~0x3FU) << "the floating point mode was changed";
      ASSERT_TRUE(operands.hold_what_they_should()) << describe(plan);
      // Nobody frees what another one still reads.
      const Call barrier{.kind = OpKind::kBarrier};
      ASSERT_OK(execute(communicator, barrier, fingerprint_of(barrier, 1, ++sequence),
                        Clock::steady().in(60s), means));
    }
  });
  return helpers.most();
}

TEST(Property, EveryWorldGivesTheBitsOfAFoldInRankOrder) {
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds && !HasFailure(); ++seed) {
    const int threads = run_world(seed);
    if (all_must_help(seed)) {
      EXPECT_EQ(threads, threads_of(seed)) << "of seed " << seed;
    }
  }
}

// To the rank that has nothing, and gets nothing, its parts are even: the others were in another operation.
TEST(Property, AnAllToAllInWhichOneRankHasNothing) {
  constexpr std::size_t kSizes[3][3] = {{0, 0, 0}, {0, 3, 5}, {0, 1, 70'000}};  // [from][to]
  for (const std::vector<int>& hosts : {std::vector{0, 0, 0}, {0, 0, 1}, {0, 1, 2}}) {
    CommunicatorWorld(hosts).run([&](Communicator& communicator) {
      const auto own = static_cast<std::size_t>(communicator.position());
      std::vector<Buffer> from, to;
      for (std::size_t peer = 0; peer < 3; ++peer) {
        from.emplace_back(kSizes[own][peer], static_cast<std::byte>(10 * own + peer));
        to.emplace_back(kSizes[peer][own]);
      }
      const std::vector<ByteView> inputs(from.begin(), from.end());
      const std::vector<ByteSpan> outputs(to.begin(), to.end());
      const Call call{.kind = OpKind::kAllToAll, .inputs = inputs, .outputs = outputs};
      ASSERT_OK(
          execute(communicator, call, fingerprint_of(call, 1, 1), Clock::steady().in(60s), Means::none()));
      for (std::size_t peer = 0; peer < 3; ++peer)
        EXPECT_EQ(to[peer], Buffer(kSizes[peer][own], static_cast<std::byte>(10 * peer + own)));
    });
  }
}

TEST(Property, TheSeedsSeeEveryWorldLayoutAndPair) {
  std::set<std::size_t> sizes;
  std::set<std::vector<int>> layouts;
  std::set<Pair> pairs;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Random random(seed);
    const std::vector<int> hosts = hosts_of(seed, random);
    sizes.insert(hosts.size());
    layouts.insert(hosts);
    for (const Plan& plan : plans_of(seed, random, static_cast<int>(hosts.size()))) {
      if (reduces(plan.kind)) pairs.emplace(plan.dtype, plan.op);
    }
  }
  EXPECT_EQ(sizes.size(), static_cast<std::size_t>(kMostRanks));
  for (const std::vector<int>& layout : kNamedLayouts) EXPECT_TRUE(layouts.contains(layout));
  EXPECT_EQ(pairs.size(), all_pairs().size());
}

}  // namespace
}  // namespace lockstep::collective

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc % 2 == 0) return 2;
  for (int i = 1; i + 1 < argc; i += 2) {
    const auto number = lockstep::base::parse_integer<std::uint64_t>(argv[i + 1]);
    const std::string_view option = argv[i];
    if (!number || (option != "--seeds" && option != "--first")) return 2;
    (option == "--seeds" ? lockstep::collective::seeds : lockstep::collective::first_seed) = *number;
  }
  return RUN_ALL_TESTS();
}
