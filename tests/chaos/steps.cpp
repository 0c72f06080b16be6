#include "steps.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::chaos {
namespace {

constexpr std::array<std::size_t, 8> kCounts = {0, 1, 7, 1000, 4097, 20'000, 70'001, 300'000};

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

int number_at(int rank, std::size_t at, std::uint32_t salt) {
  return static_cast<int>((static_cast<std::size_t>(rank) * 7 + at * 5 + salt) % 101);
}

// A step on numbers of one type.
template <typename T>
class Typed {
 public:
  Typed(World& world, Backend& group, const Step& step)
      : world_(world), group_(group), step_(step), n_(group.size().value), own_(group.rank().value) {}

  Status run() {
    switch (step_.way) {
      case Way::kBarrier:
        return group_.run({.kind = OpKind::kBarrier});
      case Way::kBroadcast:
        return broadcast();
      case Way::kAllReduce: {
        std::vector<T> data = numbers(own_);
        return all_reduce(data);
      }
      case Way::kAllReduceShared:
        return all_reduce_shared();
      case Way::kAllReduceStarted:
        return all_reduce_started();
      case Way::kReduce:
        return reduce();
      case Way::kAllGather:
      case Way::kGather:
        return gather();
      case Way::kScatter:
        return scatter();
      case Way::kReduceScatter:
        return reduce_scatter();
      case Way::kAllToAll:
        return all_to_all();
      case Way::kMessages:
        return messages();
    }
    return Status::internal("a way without a name");
  }

 private:
  template <typename View, typename Buffers>
  static std::vector<View> views_of(Buffers& buffers) {
    std::vector<View> views;
    views.reserve(buffers.size());
    for (auto& buffer : buffers) views.push_back(bytes_of(buffer));
    return views;
  }
  // How much rank `from` has for rank `to`, where both matter.
  std::size_t count_of(int from, int to) const {
    return step_.uneven ? step_.count * static_cast<std::size_t>(1 + (from + 2 * to) % 3) / 3 : step_.count;
  }
  std::vector<T> numbers(int rank) const { return numbers(rank, 0, step_.count); }
  std::vector<T> numbers(int rank, std::size_t from, std::size_t count) const {
    std::vector<T> out(count);
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<T>(number_at(rank, from + i, step_.salt));
    return out;
  }
  // Part `part` of n, where ranks send different numbers to each other.
  std::vector<T> part(int rank, int part, std::size_t count) const {
    return numbers(rank, static_cast<std::size_t>(part) * step_.count, count);
  }
  T reduced(std::size_t at) const {
    T result = static_cast<T>(number_at(0, at, step_.salt));
    for (int rank = 1; rank < n_; ++rank) {
      const T number = static_cast<T>(number_at(rank, at, step_.salt));
      result = step_.reduce_op == ReduceOp::kMax ? std::max(result, number) : result + number;
    }
    return result;
  }
  Status compare(std::span<const T> data, const std::vector<T>& expected) const {
    if (std::equal(data.begin(), data.end(), expected.begin(), expected.end())) return {};
    return Status::internal(cat("wrong numbers after step of way ", static_cast<int>(step_.way)));
  }
  Status expect_reduced(std::span<const T> data, std::size_t from = 0) const {
    std::vector<T> expected(data.size());
    for (std::size_t i = 0; i < data.size(); ++i) expected[i] = reduced(from + i);
    return compare(data, expected);
  }
  Call call(OpKind kind) const {
    return {.kind = kind, .dtype = step_.dtype, .reduce_op = step_.reduce_op, .root = step_.root};
  }

  Status broadcast() {
    std::vector<T> data = own_ == step_.root.value ? numbers(own_) : std::vector<T>(step_.count);
    const ByteSpan bytes = bytes_of(data);
    Call broadcast = call(OpKind::kBroadcast);
    broadcast.outputs = {&bytes, 1};
    LOCKSTEP_TRY(group_.run(broadcast));
    return compare(data, numbers(step_.root.value));
  }

  Status all_reduce(std::span<T> data) {
    const ByteSpan bytes = std::as_writable_bytes(data);
    Call reduce = call(OpKind::kAllReduce);
    reduce.outputs = {&bytes, 1};
    LOCKSTEP_TRY(group_.run(reduce));
    return expect_reduced(data);
  }

  Status all_reduce_shared() {
    const std::vector<T> own = numbers(own_);
    LOCKSTEP_ASSIGN(const SharedMemory memory,
                    world_.allocate(Bytes{std::max<std::size_t>(own.size(), 1) * sizeof(T)}));
    const std::span<T> data(reinterpret_cast<T*>(memory.bytes.data()), own.size());
    std::copy(own.begin(), own.end(), data.begin());
    return all_reduce(data);
  }

  Status all_reduce_started() {
    std::vector<std::shared_ptr<std::vector<T>>> buffers;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 3; ++i) {
      buffers.push_back(std::make_shared<std::vector<T>>(numbers(own_)));
      const ByteSpan bytes = bytes_of(*buffers.back());
      Call reduce = call(OpKind::kAllReduce);
      reduce.outputs = {&bytes, 1};
      works.push_back(group_.start(reduce, {.keep = buffers.back()}));
    }
    for (const WorkPtr& work : works) LOCKSTEP_TRY(work->wait());
    for (const auto& buffer : buffers) LOCKSTEP_TRY(expect_reduced(*buffer));
    return {};
  }

  Status reduce() {
    const std::vector<T> data = numbers(own_);
    std::vector<T> result(step_.count);
    const ByteView in = bytes_of(data);
    const ByteSpan out = bytes_of(result);
    const bool is_root = own_ == step_.root.value;
    Call reduce = call(OpKind::kReduce);
    reduce.inputs = {&in, 1};
    if (is_root) reduce.outputs = {&out, 1};
    LOCKSTEP_TRY(group_.run(reduce));
    return is_root ? expect_reduced(result) : Status();
  }

  Status gather() {
    const bool everyone = step_.way == Way::kAllGather;
    const bool takes = everyone || own_ == step_.root.value;
    const std::vector<T> own = numbers(own_, 0, count_of(own_, 0));
    std::vector<std::vector<T>> results;
    for (int i = 0; takes && i < n_; ++i) results.emplace_back(count_of(i, 0));
    const std::vector<ByteSpan> out = views_of<ByteSpan>(results);
    const ByteView in = bytes_of(own);
    Call gather = call(everyone ? OpKind::kAllGather : OpKind::kGather);
    gather.inputs = {&in, 1};
    gather.outputs = out;
    LOCKSTEP_TRY(group_.run(gather));
    for (std::size_t i = 0; i < results.size(); ++i)
      LOCKSTEP_TRY(compare(results[i], numbers(static_cast<int>(i), 0, results[i].size())));
    return {};
  }

  Status scatter() {
    std::vector<std::vector<T>> parts;
    if (own_ == step_.root.value)
      for (int i = 0; i < n_; ++i) parts.push_back(part(own_, i, count_of(0, i)));
    const std::vector<ByteView> in = views_of<ByteView>(parts);
    std::vector<T> result(count_of(0, own_));
    const ByteSpan out = bytes_of(result);
    Call scatter = call(OpKind::kScatter);
    scatter.inputs = in;
    scatter.outputs = {&out, 1};
    LOCKSTEP_TRY(group_.run(scatter));
    return compare(result, part(step_.root.value, own_, result.size()));
  }

  Status reduce_scatter() {
    std::vector<std::vector<T>> parts;
    parts.reserve(static_cast<std::size_t>(n_));
    for (int i = 0; i < n_; ++i) parts.push_back(part(own_, i, count_of(0, i)));
    const std::vector<ByteView> in = views_of<ByteView>(parts);
    std::vector<T> result(count_of(0, own_));
    const ByteSpan out = bytes_of(result);
    Call reduce = call(OpKind::kReduceScatter);
    reduce.inputs = in;
    reduce.outputs = {&out, 1};
    LOCKSTEP_TRY(group_.run(reduce));
    return expect_reduced(result, static_cast<std::size_t>(own_) * step_.count);
  }

  Status all_to_all() {
    std::vector<std::vector<T>> parts;
    std::vector<std::vector<T>> results;
    for (int i = 0; i < n_; ++i) {
      parts.push_back(part(own_, i, count_of(own_, i)));
      results.emplace_back(count_of(i, own_));
    }
    const std::vector<ByteView> in = views_of<ByteView>(parts);
    const std::vector<ByteSpan> out = views_of<ByteSpan>(results);
    Call exchange = call(OpKind::kAllToAll);
    exchange.inputs = in;
    exchange.outputs = out;
    LOCKSTEP_TRY(group_.run(exchange));
    for (int i = 0; i < n_; ++i) {
      const std::vector<T>& result = results[static_cast<std::size_t>(i)];
      LOCKSTEP_TRY(compare(result, part(i, own_, result.size())));
    }
    return {};
  }

  Status messages() {
    const int next = (own_ + 1) % n_;
    const int before = (own_ + n_ - 1) % n_;
    // Kept by the messages: one that fails may be done with its bytes later.
    const auto out = std::make_shared<std::vector<T>>(numbers(own_));
    const auto in = std::make_shared<std::vector<T>>(step_.count);
    const WorkPtr received = group_.recv(Rank{before}, step_.salt, bytes_of(*in), {.keep = in});
    const WorkPtr sent = group_.send(Rank{next}, step_.salt,
                                     bytes_of(static_cast<const std::vector<T>&>(*out)), {.keep = out});
    LOCKSTEP_TRY(received->wait());
    LOCKSTEP_TRY(sent->wait());
    return compare(*in, numbers(before));
  }

  World& world_;
  Backend& group_;
  const Step step_;
  const int n_;
  const int own_;
};

}  // namespace

Step step_of(std::uint64_t seed, int number, WorldSize size) {
  const std::uint64_t bits = mix(seed ^ mix(static_cast<std::uint64_t>(number)));
  Step step;
  step.way = static_cast<Way>(bits % kWays);
  step.count = kCounts[(bits >> 8) % kCounts.size()];
  step.dtype = (bits >> 16) % 2 == 0 ? DType::kInt32 : DType::kFloat32;
  step.reduce_op = (bits >> 20) % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
  step.root = Rank(static_cast<int>((bits >> 24) % static_cast<std::uint64_t>(size.value)));
  step.uneven = (bits >> 28) % 4 == 0;
  step.salt = static_cast<std::uint32_t>(bits >> 32);
  return step;
}

Status run_step(World& world, Backend& group, const Step& step) {
  switch (step.dtype) {
    case DType::kInt32:
      return Typed<std::int32_t>(world, group, step).run();
    case DType::kInt64:
      return Typed<std::int64_t>(world, group, step).run();
    default:
      return Typed<float>(world, group, step).run();
  }
}

bool is_wrong(const Status& status) {
  return status.code() == Code::kInternal && status.message().starts_with("wrong");
}

}  // namespace lockstep::chaos
