// Collectives that move bytes: every type, uneven sizes, several buffers at once.
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/backend/operations.h"
#include "lockstep/base/text.h"
#include "lockstep/testing/backend_conformance_cases.h"
#include "lockstep/testing/pattern.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {
namespace {

// How many elements rank `from` gives `to` in a buffer.
using Count = std::function<std::size_t(int from, int to, std::size_t buffer)>;

// One collective, with what each of its outputs must be.
class Move {
 public:
  Move(OpKind kind, DType type, Rank root, Backend& group)
      : group_(group),
        element_(collective::size_of(type)),
        own_(group.rank().value),
        n_(group.size().value),
        is_root_(group.rank() == root) {
    call_.kind = kind;
    call_.dtype = type;
    call_.root = root;
  }

  Status run(std::size_t buffers, const Count& count) {
    for (std::size_t b = 0; b < buffers; ++b) add(b, count);
    std::vector<ByteView> inputs(inputs_.begin(), inputs_.end());
    std::vector<ByteSpan> outputs(outputs_.begin(), outputs_.end());
    call_.inputs = inputs;
    call_.outputs = outputs;
    Status status = group_.run(call_);
    const bool is_right = std::ranges::equal(outputs_, expected_, {}, text_of, text_of);
    EXPECT_TRUE(!status.ok() || is_right) << collective::name_of(call_.kind);
    return status;
  }

 private:
  Buffer bytes(std::size_t count, int from, int to, std::size_t b) const {
    return pattern(count * element_, from, to, b);
  }
  void give(Buffer bytes) { inputs_.push_back(std::move(bytes)); }
  void take(Buffer expected) {
    outputs_.emplace_back(expected.size());
    expected_.push_back(std::move(expected));
  }

  void add(std::size_t b, const Count& count) {
    const int root = call_.root.value;
    switch (call_.kind) {
      case OpKind::kBroadcast:
        take(bytes(count(root, 0, b), root, 0, b));
        if (is_root_) outputs_.back() = expected_.back();
        return;
      case OpKind::kAllGather:
        give(bytes(count(own_, 0, b), own_, 0, b));
        for (int r = 0; r < n_; ++r) take(bytes(count(r, 0, b), r, 0, b));
        return;
      case OpKind::kGather:
        give(bytes(count(own_, 0, b), own_, 0, b));
        for (int r = 0; is_root_ && r < n_; ++r) take(bytes(count(r, 0, b), r, 0, b));
        return;
      case OpKind::kScatter:
        for (int r = 0; is_root_ && r < n_; ++r) give(bytes(count(root, r, b), root, r, b));
        take(bytes(count(root, own_, b), root, own_, b));
        return;
      case OpKind::kAllToAll:
        for (int r = 0; r < n_; ++r) give(bytes(count(own_, r, b), own_, r, b));
        for (int r = 0; r < n_; ++r) take(bytes(count(r, own_, b), r, own_, b));
        return;
      default:
        FAIL() << "not a move";
    }
  }

  Backend& group_;
  const std::size_t element_;
  const int own_;
  const int n_;
  const bool is_root_;
  Call call_;
  std::vector<Buffer> inputs_;
  std::vector<Buffer> outputs_;
  std::vector<Buffer> expected_;
};

constexpr OpKind kMoves[] = {OpKind::kBroadcast, OpKind::kAllGather, OpKind::kGather, OpKind::kScatter,
                             OpKind::kAllToAll};

void every_type_moves(Groups& groups, SupportTable& table) {
  for (const OpKind kind : kMoves) {
    for (int t = 0; t < collective::kDTypes; ++t) {
      const auto type = static_cast<DType>(t);
      const Status status =
          Move(kind, type, Rank{0}, groups.group()).run(1, [](int, int, std::size_t) { return 33; });
      table.add(std::string(collective::name_of(kind)), type, status.ok());
    }
  }
}

void every_root(Groups& groups, SupportTable& /*table*/) {
  for (const OpKind kind : kMoves) {
    for (int root = 0; root < groups.size().value; ++root) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{5}, std::size_t{40'000}}) {
        ASSERT_OK(
            Move(kind, DType::kFloat32, Rank{root}, groups.group()).run(1, [count](int, int, std::size_t) {
              return count;
            }));
      }
    }
  }
}

// Every rank hears it where a backend has none; the group lives on.
void uneven(Groups& groups, SupportTable& table) {
  const auto count = [](int from, int to, std::size_t) { return index_of(from * 1000 + to * 37); };
  for (const OpKind kind : kMoves) {
    const Status status =
        Move(kind, DType::kInt64, Rank{groups.size().value - 1}, groups.group()).run(1, count);
    ASSERT_TRUE(status.ok() || status.code() == Code::kUnsupported) << status.text();
    if (kind != OpKind::kBroadcast) table.add(cat(collective::name_of(kind), ", uneven sizes"), status.ok());
  }
}

void coalesced(Groups& groups, SupportTable& /*table*/) {
  const auto count = [](int, int, std::size_t b) { return (b + 1) * 100; };
  for (const OpKind kind : {OpKind::kBroadcast, OpKind::kAllGather, OpKind::kGather, OpKind::kScatter})
    ASSERT_OK(Move(kind, DType::kInt16, Rank{groups.size().value - 1}, groups.group()).run(3, count));
  const auto of_uneven = [](int from, int to, std::size_t b) {
    return (b + 1) * index_of(from + 2 * to) * 100;
  };
  for (const OpKind kind : {OpKind::kBroadcast, OpKind::kAllGather})
    ASSERT_OK(Move(kind, DType::kInt16, Rank{groups.size().value - 1}, groups.group()).run(3, of_uneven));
  for (const OpKind kind : {OpKind::kGather, OpKind::kScatter}) {
    const Status status =
        Move(kind, DType::kInt16, Rank{groups.size().value - 1}, groups.group()).run(3, of_uneven);
    ASSERT_TRUE(status.ok() || status.code() == Code::kUnsupported) << status.text();
  }
}

}  // namespace

Buffer pattern(std::size_t size, int from, int to, std::size_t buffer) {
  return pattern(size, (index_of(from) * 1'000 + index_of(to)) * 1'000 + buffer);
}

std::vector<BackendCase> move_cases() {
  return {{"Move", "OfEveryType", every_type_moves},
          {"Move", "FromAndToEveryRootInAnySize", every_root},
          {"Move", "OfUnevenSizes", uneven},
          {"Move", "OfSeveralBuffersAtOnce", coalesced}};
}

}  // namespace lockstep::testing
