// The adapter to c10d, on torch's FakeProcessGroup, in which the other ranks say what this one says, and on
// an object that can do nothing. That bytes arrive is shown by tests/conformance.
#include "lockstep/tensor/borrowed/borrowed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <torch/csrc/distributed/c10d/FakeProcessGroup.hpp>
#include <vector>

#include "lockstep/backend/operations.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/tensor_test_support.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::tensor {
namespace {

using c10d::FakeProcessGroup;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

GroupPlan plan_of(int rank, int size) {
  GroupPlan plan{.name = "fake", .rank = Rank{rank}};
  for (int i = 0; i < size; ++i) plan.members.emplace_back(i + 10);
  return plan;
}

std::unique_ptr<Backend> fake_group(int rank, int size, bool fails = false) {
  auto options = c10::make_intrusive<FakeProcessGroup::Options>();
  options->error_on_collective = fails;
  auto group =
      borrow(FakeProcessGroup::_create_internal(rank, size, std::move(options)), plan_of(rank, size));
  EXPECT_OK(group.status());
  return std::move(*group);
}

// What every virtual of c10d::Backend says that is not overridden.
class Bare final : public c10d::Backend {
 public:
  Bare() : c10d::Backend(0, 2) {}
  const std::string getBackendName() const override { return "bare"; }
};

// Notes what it is given.
class Noting final : public c10d::Backend {
 public:
  Noting(int rank, int size, std::vector<std::string>& notes)
      : c10d::Backend(rank, size), fake_(FakeProcessGroup::_create_internal(rank, size)), notes_(notes) {}
  const std::string getBackendName() const override { return "noting"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    note("allreduce", tensors);
    return fake_->allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    note("broadcast", tensors);
    return fake_->broadcast(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    note("send", tensors);
    return fake_->send(tensors, peer, tag);
  }

 private:
  void note(const char* call, const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors)
      notes_.push_back(cat(call, " ", tensor.numel(), " ", c10::toString(tensor.scalar_type()), " ",
                           tensor.device().str()));
  }
  const c10::intrusive_ptr<FakeProcessGroup> fake_;
  std::vector<std::string>& notes_;
};

struct Bytes {
  explicit Bytes(std::size_t count, float value = 0) : data(count, value) {}
  ByteView view() const { return bytes_of(data); }
  ByteSpan span() { return bytes_of(data); }
  std::vector<float> data;
};

// A call of every kind, on `group`, with one float from and for each rank.
std::vector<Status> call_all(Backend& group) {
  const auto n = static_cast<std::size_t>(group.size().value);
  std::vector<Status> got;
  std::vector<Bytes> from(n, Bytes(1, 5));
  std::vector<Bytes> to(n, Bytes(1));
  std::vector<ByteView> inputs;
  std::vector<ByteSpan> outputs;
  for (std::size_t r = 0; r < n; ++r) {
    inputs.push_back(from[r].view());
    outputs.push_back(to[r].span());
  }
  const std::span<const ByteView> one_input(inputs.data(), 1);
  const std::span<const ByteSpan> one_output(outputs.data(), 1);
  const auto run = [&](OpKind kind, std::span<const ByteView> in, std::span<const ByteSpan> out) {
    got.push_back(group.run({.kind = kind, .dtype = DType::kFloat32, .inputs = in, .outputs = out}));
  };
  run(OpKind::kBarrier, {}, {});
  run(OpKind::kBroadcast, {}, one_output);
  run(OpKind::kAllReduce, {}, one_output);
  run(OpKind::kReduce, one_input, one_output);
  run(OpKind::kAllGather, one_input, outputs);
  run(OpKind::kGather, one_input, outputs);
  run(OpKind::kScatter, inputs, one_output);
  run(OpKind::kReduceScatter, inputs, one_output);
  run(OpKind::kAllToAll, inputs, outputs);
  return got;
}

TEST(Borrowed, EveryCollectiveIsACallOfC10d) {
  const auto group = fake_group(0, 4);
  EXPECT_THAT(call_all(*group), Each(IsOk()));
  EXPECT_EQ(group->sequence(), 9U);
  EXPECT_EQ(group->world_rank(Rank{3}), Rank{13});
  EXPECT_OK(group->failure());
}

TEST(Borrowed, BytesGoWhereTheyBelong) {
  const auto group = fake_group(1, 3);
  const std::vector<float> own{1, 2};
  std::vector<float> all(6);
  ASSERT_OK(all_gather(*group, std::span(own), std::span(all)));
  EXPECT_THAT(all, ::testing::ElementsAre(1, 2, 1, 2, 1, 2));
  const std::vector<float> parts{1, 2, 3, 4, 5, 6};
  std::vector<float> part(2);
  ASSERT_OK(reduce_scatter(*group, std::span(parts), std::span(part)));
  EXPECT_THAT(part, ::testing::ElementsAre(3, 4));
}

TEST(Borrowed, AnInputThatIsReducedElsewhereStaysAsItIs) {
  const auto group = fake_group(1, 3);
  std::vector<float> data{7, 8};
  ASSERT_OK(reduce(*group, std::span(data), Rank{0}));
  EXPECT_THAT(data, ::testing::ElementsAre(7, 8));
}

TEST(Borrowed, UnevenGatherIsUnsupportedAndTheGroupLivesOn) {
  const auto group = fake_group(0, 2);
  Bytes in(2, 1);
  Bytes first(2);
  Bytes second(3);
  const ByteView input = in.view();
  const std::vector<ByteSpan> outputs{first.span(), second.span()};
  EXPECT_THAT(
      group->run(
          {.kind = OpKind::kGather, .dtype = DType::kFloat32, .inputs = {&input, 1}, .outputs = outputs}),
      StatusIs(Code::kUnsupported, AllOf(HasSubstr("rank 10: gather #1"), HasSubstr("uneven"))));
  EXPECT_OK(barrier(*group));
}

TEST(Borrowed, AsynchronousCallsAndMessagesEnd) {
  const auto group = fake_group(0, 2);
  const auto data = std::make_shared<std::vector<float>>(3, 1.F);
  const ByteSpan bytes = bytes_of(*data);
  const WorkPtr work = group->start(
      {.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = {&bytes, 1}}, {.keep = data});
  EXPECT_OK(work->wait());
  EXPECT_EQ(work->sequence(), 1U);
  const WorkPtr sent = group->send(Rank{1}, 3, bytes);
  EXPECT_OK(sent->wait());
  const WorkPtr received = group->recv(Rank{1}, 3, bytes);
  std::promise<Status> told;
  received->on_complete([&](const Status& status) { told.set_value(status); });
  EXPECT_OK(told.get_future().get());
  EXPECT_EQ(received->source(), Rank{1});
  EXPECT_THAT(group->send(Rank{2}, 3, bytes)->wait(), StatusIs(Code::kInvalid, HasSubstr("has 2 ranks")));
  EXPECT_THAT(group->send(Rank{1}, std::uint64_t{1} << 31, bytes)->wait(),
              StatusIs(Code::kInvalid, HasSubstr("the tag is 2147483648")));
}

TEST(Borrowed, WhatC10dLacksIsUnsupported) {
  auto made = borrow(c10::make_intrusive<Bare>(), plan_of(0, 2), {.compare_calls = CompareCalls::kNever});
  ASSERT_OK(made.status());
  Backend& group = **made;
  EXPECT_THAT(call_all(group),
              Each(StatusIs(Code::kUnsupported, HasSubstr("Backend bare does not support"))));
  for (const Status& status : {group.monitored_barrier(), group.send(Rank{1}, 0, {})->wait(),
                               group.recv(Rank{1}, 0, {})->wait(), group.recv({}, 0, {})->wait()})
    EXPECT_THAT(status, StatusIs(Code::kUnsupported, HasSubstr("Backend bare does not support")));
  EXPECT_OK(group.failure());
}

TEST(Borrowed, AnErrorOfC10dEndsTheGroup) {
  const auto group = fake_group(0, 2, /*fails=*/true);
  const Status first = barrier(*group);
  EXPECT_THAT(first, StatusIs(Code::kInternal, AllOf(HasSubstr("rank 10: barrier #1"),
                                                     HasSubstr("collective operation error"))));
  EXPECT_EQ(barrier(*group).text(), first.text());
  EXPECT_EQ(group->failure().text(), first.text());
  EXPECT_EQ(group->send(Rank{1}, 0, {})->wait().code(), Code::kInternal);
}

TEST(Borrowed, AbortEndsTheGroup) {
  const auto group = fake_group(0, 2);
  group->abort(Status::aborted("enough"));
  EXPECT_THAT(barrier(*group), StatusIs(Code::kAborted, HasSubstr("rank 10 said: enough")));
}

TEST(Borrowed, TakesTensorsOfAnotherDevice) {
  EXPECT_OK(testing::ProcessWorld(2).run([](const SpawnedRank& rank) {
    std::vector<std::string> notes;
    const MakeBorrowed make = [&notes](const GroupPlan& plan) {
      return c10::make_intrusive<Noting>(plan.rank.value, static_cast<int>(plan.members.size()), notes);
    };
    const auto world = init_process_group(
        {.backend = "cpu:native,meta:theirs",
         .debug = {.level = DebugLevel::kDetail},
         .backends = {{"theirs", borrowed_backend(make, {.device = c10::DeviceType::Meta})}},
         .environment = rank.environment});
    const at::TensorOptions meta(at::kMeta);
    const at::Tensor tensor = at::empty({4, 2}, meta.dtype(at::kHalf));
    all_reduce(tensor);
    all_reduce(tensor.select(1, 0), {.async_op = true}).wait();
    all_reduce_coalesced({at::empty({3}, meta), at::empty({5}, meta)});
    broadcast(at::empty({3}, meta.dtype(at::kInt)), {.src = 0, .async_op = true}).wait();
    isend(tensor, {.dst = 1 - rank.rank.value}).wait();
    EXPECT_THAT(notes, ::testing::ElementsAre("allreduce 8 Half meta", "allreduce 4 Half meta",
                                              "allreduce 3 Float meta", "allreduce 5 Float meta",
                                              "broadcast 12 Byte meta", "send 16 Byte meta"));
    // What it lacks, and what is mixed, is said; the group lives on.
    expect_error<Unsupported>(
        [&] {
          all_gather({tensor.clone(), tensor.clone()}, tensor);
        },
        {"Backend noting does not support"});
    expect_error(
        [&] {
          all_reduce_coalesced({at::ones({2}), at::empty({2}, meta)});
        },
        {"tensors[1] is on meta", "tensors[0] is on cpu"});
    expect_error([&] { send(tensor, {.dst = 1 - rank.rank.value, .tag = std::uint64_t{1} << 40}); }, {"tag"});
    all_reduce(tensor);
    const at::Tensor sum = at::ones({2});
    all_reduce(sum);
    EXPECT_TRUE(all_equal(sum, 2));
  }));
}

TEST(Borrowed, AnObjectOfAnotherGroupIsRefused) {
  EXPECT_THAT(borrow(FakeProcessGroup::_create_internal(0, 3), plan_of(1, 3)).status(),
              StatusIs(Code::kInvalid, HasSubstr("rank 0 of 3, but it is rank 1 of 3")));
  EXPECT_THAT(borrow({}, plan_of(1, 3)).status(), StatusIs(Code::kInvalid, HasSubstr("no c10d backend")));
}

}  // namespace
}  // namespace lockstep::tensor
