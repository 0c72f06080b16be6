// Random operations on random worlds give, bit by bit, what one process gets that folds in rank order.
//
//   property_test [--seeds N] [--first N]     by default a few seeds; each is one world and its operations
//
// The kernel that the expectation comes from is itself compared with plain arithmetic in reduction_test.cpp.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cstring>
#include <deque>
#include <random>

#include "lockstep/base/text.h"
#include "lockstep/collective/execute.h"
#include "lockstep/testing/communicator_world.h"
#include "lockstep/testing/sanitized.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::collective {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::CommunicatorWorld;
using transport::Communicator;

std::uint64_t first_seed = 1;
std::uint64_t seeds = lockstep::testing::kSanitized ? 2 : 20;

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

// The hosts of 1 to 9 ranks.
std::vector<int> random_hosts(Random& random) {
  static const std::vector<int> kNamed[] = {{0, 0, 0, 0, 0, 0, 0, 0},
                                            {0, 0, 0, 0, 1, 1, 1, 1},
                                            {0, 0, 1, 1, 2, 2, 3, 3},
                                            {0, 0, 0, 1, 1, 1, 1, 1},
                                            {0, 1, 0, 1, 0, 1}};
  if (random.below(3) == 0) return kNamed[random.below(std::size(kNamed))];
  std::vector<int> hosts(1 + random.below(9));
  const std::size_t most = 1 + random.below(4);
  for (int& host : hosts) host = static_cast<int>(random.below(most));
  // Hosts whose ranks follow each other are the usual case.
  if (random.below(2) == 0) std::sort(hosts.begin(), hosts.end());
  return hosts;
}

// What all ranks know of an operation.
struct Plan {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::vector<std::size_t> counts;  // elements of each buffer that travels
  std::uint64_t seed = 0;           // of the contents
  std::uint64_t resident = 0;       // a bit for each rank
  std::uint64_t odd_modes = 0;      // likewise: its floating point mode is another
  bool side_by_side = false;        // the parts of an input, in memory
};

Plan random_plan(Random& random, int ranks) {
  static constexpr OpKind kKinds[] = {OpKind::kAllReduce,     OpKind::kAllReduce, OpKind::kReduce,
                                      OpKind::kReduceScatter, OpKind::kBroadcast, OpKind::kAllGather,
                                      OpKind::kScatter,       OpKind::kGather,    OpKind::kAllToAll};
  static constexpr std::size_t kSizes[] = {0, 1, 2, 63, 64, 65, 1001, 4096, 20'011, 70'001};
  Plan plan{.kind = random.one_of(kKinds),
            .root = static_cast<int>(random.below(static_cast<std::size_t>(ranks)))};
  do {
    plan.dtype = static_cast<DType>(random.below(kDTypes));
    plan.op = static_cast<ReduceOp>(random.below(kReduceOps));
  } while (reduces(plan.kind) && !check_reducible(plan.dtype, plan.op).ok());
  const bool alone = plan.kind == OpKind::kAllToAll;  // has no form with several buffers
  const std::size_t buffers = !alone && random.below(3) == 0 ? 2 + random.below(4) : 1;
  for (std::size_t b = 0; b < buffers; ++b) plan.counts.push_back(random.one_of(kSizes));
  plan.seed = random.bits();
  plan.resident = random.one_of({std::uint64_t{0}, ~std::uint64_t{0}, random.bits()});
  plan.odd_modes = random.bits() & random.bits();
  plan.side_by_side = random.below(2) == 0;
  return plan;
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

double factor_of(int rank) { return 0.25 + rank; }

Buffer expected_fold(const Plan& plan, std::size_t buffer, int ranks, int part, std::size_t count) {
  std::vector<Buffer> inputs;
  std::vector<double> factors;
  for (int i = 0; i < ranks; ++i) {
    inputs.push_back(contents(plan, buffer, i, part, count));
    factors.push_back(factor_of(i));
  }
  std::vector<const std::byte*> sources;
  sources.reserve(inputs.size());
  for (const Buffer& input : inputs) sources.push_back(input.data());
  Buffer out(count * size_of(plan.dtype));
  std::byte* const to = out.data();
  fold({.type = plan.dtype, .op = plan.op, .ranks = ranks, .factors = factors}, sources, {&to, 1}, count);
  return out;
}

// One rank's buffers in one operation, and what must be in them at the end.
class Operands {
 public:
  Operands(Communicator& communicator, const Plan& plan) : communicator_(communicator), plan_(plan) {
    for (std::size_t b = 0; b < plan.counts.size(); ++b) prepare(b, plan.counts[b]);
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
            .factor = factor_of(own()),
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

  void prepare(std::size_t b, std::size_t count) {
    const int ranks = communicator_.size();
    const auto give = [&](int parts) {
      std::vector<Buffer> all;
      Buffer whole;
      for (int part = 0; part < parts; ++part) {
        all.push_back(contents(plan_, b, own(), part, count));
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
    };
    const auto take = [&](const Buffer& before, Buffer after) {
      outputs_.push_back(place(before));
      expected_.push_back(std::move(after));
    };
    const Buffer empty(count * size_of(plan_.dtype));
    switch (plan_.kind) {
      case OpKind::kBroadcast:
        return take(contents(plan_, b, own(), 0, count), contents(plan_, b, plan_.root, 0, count));
      case OpKind::kReduce:
        give(1);
        if (own() == plan_.root) take(empty, expected_fold(plan_, b, ranks, 0, count));
        return;
      case OpKind::kReduceScatter:
        give(ranks);
        return take(empty, expected_fold(plan_, b, ranks, own(), count));
      case OpKind::kAllGather:
        give(1);
        for (int peer = 0; peer < ranks; ++peer) take(empty, contents(plan_, b, peer, 0, count));
        return;
      case OpKind::kGather:
        give(1);
        for (int peer = 0; own() == plan_.root && peer < ranks; ++peer)
          take(empty, contents(plan_, b, peer, 0, count));
        return;
      case OpKind::kScatter:
        if (own() == plan_.root) give(ranks);
        return take(empty, contents(plan_, b, plan_.root, own(), count));
      case OpKind::kAllToAll:
        give(ranks);
        for (int peer = 0; peer < ranks; ++peer) take(empty, contents(plan_, b, peer, own(), count));
        return;
      default:
        return take(contents(plan_, b, own(), 0, count), expected_fold(plan_, b, ranks, 0, count));
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
             ::testing::PrintToString(plan.counts));
}

void run_world(std::uint64_t seed) {
  Random random(seed);
  const std::vector<int> hosts = random_hosts(random);
  SCOPED_TRACE(cat("property_test --seeds 1 --first ", seed, ", hosts ", ::testing::PrintToString(hosts)));
  const int ranks = static_cast<int>(hosts.size());
  std::vector<Plan> plans;
  for (int i = 0; i < 12; ++i) plans.push_back(random_plan(random, ranks));
  static Alone alone;
  const auto way = [&] { return random.below(2) == 0 ? CopyWay::kCached : CopyWay::kPastCache; };
  const Means means{.tuning = {.copy_ways = {way(), way(), way()}, .round_bytes = random.below(1 << 18)},
                    .helpers = alone};
  const CommunicatorWorld::Options options{
      .staging = random.one_of({Bytes::kib(16), Bytes::kib(64), Bytes::mib(1)}),
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
}

TEST(Property, EveryWorldGivesTheBitsOfAFoldInRankOrder) {
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds && !HasFailure(); ++seed) run_world(seed);
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
