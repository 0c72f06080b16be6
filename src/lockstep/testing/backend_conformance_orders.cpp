// Order, asynchronous operations, and calls that are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "lockstep/backend/operations.h"
#include "lockstep/backend/rounds.h"
#include "lockstep/testing/backend_conformance_cases.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;

void asynchronous(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  const std::uint64_t before = group.sequence();
  std::vector<WorkPtr> works;
  std::vector<std::shared_ptr<std::vector<float>>> buffers;
  for (int i = 0; i < 20; ++i) {
    buffers.push_back(std::make_shared<std::vector<float>>(1000, 1.F));
    const ByteSpan bytes = bytes_of(*buffers.back());
    works.push_back(
        group.start({.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = {&bytes, 1}},
                    {.keep = buffers.back()}));
  }
  std::vector<float> last{1};
  ASSERT_OK(backend::all_reduce(group, std::span(last)));
  for (const WorkPtr& work : works) EXPECT_TRUE(work->is_success());
  for (const auto& buffer : buffers) EXPECT_THAT(*buffer, Each(static_cast<float>(groups.size().value)));
  EXPECT_EQ(group.sequence(), before + 21);
  EXPECT_THAT(buffers, Each(::testing::Property(&std::shared_ptr<std::vector<float>>::use_count, 1)));
}

void averages_in_place(Groups& groups, SupportTable& /*table*/) {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    const auto data = std::make_shared<Buffer>(elements_of(type, {2, 4, 6}));
    const ByteSpan bytes = *data;
    const WorkPtr work = groups.group().start(
        {.kind = OpKind::kAllReduce, .dtype = type, .reduce_op = ReduceOp::kAvg, .outputs = {&bytes, 1}},
        {.keep = data});
    ASSERT_OK(work->wait());
    EXPECT_EQ(*data, elements_of(type, {2, 4, 6}));
  }
}

void callbacks(Groups& groups, SupportTable& /*table*/) {
  std::promise<Status> ended;
  const WorkPtr work = groups.group().start({.kind = OpKind::kBarrier});
  work->on_complete([&ended](const Status& status) { ended.set_value(status); });
  auto future = ended.get_future();
  ASSERT_EQ(future.wait_for(60s), std::future_status::ready);
  EXPECT_OK(future.get());
  EXPECT_TRUE(work->is_completed());
}

// Who has how many, and then all of them: the second round needs what the first has brought.
void rounds(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  auto* const starter = dynamic_cast<backend::RoundStarter*>(&group);
  ASSERT_NE(starter, nullptr);
  const std::uint64_t before = group.sequence();
  const int size = groups.size().value;
  struct Exchange {
    std::vector<std::int32_t> own, counts;
    std::vector<std::vector<std::int32_t>> all;
    std::int32_t count = 0;
    ByteView input;
    std::vector<ByteSpan> outputs;
    int finished = 0;
  };
  const auto exchange = std::make_shared<Exchange>();
  Exchange& it = *exchange;
  it.count = group.rank().value + 1;
  it.own.assign(index_of(it.count), 10 * group.rank().value);
  it.counts.resize(index_of(size));
  Rounds both;
  both.calls.emplace_back([&it]() -> Result<Call> {
    it.input = std::as_bytes(std::span(&it.count, 1));
    for (std::int32_t& count : it.counts) it.outputs.push_back(std::as_writable_bytes(std::span(&count, 1)));
    return Call{.kind = OpKind::kAllGather, .inputs = {&it.input, 1}, .outputs = it.outputs};
  });
  both.calls.emplace_back([&it]() -> Result<Call> {
    it.input = std::as_bytes(std::span(it.own));
    it.outputs.clear();
    for (const std::int32_t count : it.counts) it.all.emplace_back(index_of(count));
    for (std::vector<std::int32_t>& part : it.all) it.outputs.push_back(bytes_of(part));
    return Call{.kind = OpKind::kAllGather, .inputs = {&it.input, 1}, .outputs = it.outputs};
  });
  both.finish = [&it] {
    ++it.finished;
    return Status();
  };
  const WorkPtr work = starter->start_rounds(std::move(both), {.keep = exchange});
  std::vector<float> later{1};
  ASSERT_OK(backend::all_reduce(group, std::span(later)));
  ASSERT_TRUE(work->is_completed());
  ASSERT_OK(work->wait());
  EXPECT_EQ(work->sequence(), before + 1);
  EXPECT_EQ(group.sequence(), before + 3);
  EXPECT_EQ(it.finished, 1);
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(it.all[index_of(r)], std::vector<std::int32_t>(index_of(r + 1), 10 * r));
  }
  // What all ranks find to be wrong between two rounds changes nothing.
  Rounds wrong;
  wrong.calls.emplace_back([] { return Result<Call>(Call{.kind = OpKind::kBarrier}); });
  wrong.calls.emplace_back([]() -> Result<Call> { return Status::invalid("on purpose"); });
  EXPECT_EQ(starter->start_rounds(std::move(wrong), {})->wait().code(), Code::kInvalid);
  EXPECT_OK(backend::barrier(group));
}

void wrong_calls(Groups& groups, SupportTable& /*table*/) {
  Backend& group = groups.group();
  const std::uint64_t before = group.sequence();
  std::vector<float> data{1, 2};
  const ByteSpan bytes = bytes_of(data);
  const ByteSpan uneven = bytes.first(3);
  EXPECT_EQ(backend::broadcast(group, std::span(data), Rank{group.size().value}).code(), Code::kInvalid);
  EXPECT_EQ(backend::all_reduce(group, std::span(data), ReduceOp::kBand).code(), Code::kInvalid);
  EXPECT_EQ(group.run({.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = {&uneven, 1}}).code(),
            Code::kInvalid);
  EXPECT_EQ(group.start({.kind = OpKind::kAllGather, .outputs = {&bytes, 1}})->wait().code(), Code::kInvalid);
  EXPECT_EQ(group.sequence(), before);
  EXPECT_OK(group.failure());
}

}  // namespace

std::vector<BackendCase> order_cases() {
  return {{"Order", "AsynchronousOperationsRunInItAndKeepTheirBytes", asynchronous},
          {"Order", "AnAverageInPlace", averages_in_place},
          {"Order", "ACallbackIsToldTheEnd", callbacks},
          {"Order", "RoundsAreOneOperation", rounds},
          {"Order", "WrongCallsTakeNoPlaceInIt", wrong_calls}};
}

}  // namespace lockstep::testing
