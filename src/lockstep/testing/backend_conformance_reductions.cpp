// Every reduction of every type, on every kind of collective that reduces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "lockstep/backend/operations.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/reduction.h"
#include "lockstep/testing/backend_conformance_cases.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::testing {
namespace {

// A sanitizer watches every access: elements are made as numbers, and copied at once.
template <typename T, typename Make>
Buffer made_of(const std::vector<int>& numbers, const Make& make) {
  std::vector<T> values;
  values.reserve(numbers.size());
  for (const int number : numbers) values.push_back(make(number));
  Buffer elements(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(elements.data(), values.data(), elements.size());
  return elements;
}

template <typename T>
Buffer converted(const std::vector<int>& numbers) {
  return made_of<T>(numbers, [](int number) { return static_cast<T>(number); });
}

template <typename T>
Buffer complex_of(const std::vector<int>& numbers) {
  return made_of<std::complex<T>>(numbers, [](int number) {
    return std::complex<T>(static_cast<T>(number), static_cast<T>(number % 2 == 0 ? number / 2 : 0));
  });
}

Buffer rounded(DType type, const std::vector<int>& numbers) {
  const Buffer carried = converted<float>(numbers);
  const std::byte* const source = carried.data();
  Buffer elements(carried.size() / 2);
  std::byte* const result = elements.data();
  collective::fold({.type = type, .first = collective::Fold::Form::kCarry}, {&source, 1}, {&result, 1},
                   numbers.size());
  return elements;
}

// What a rank gives: small numbers, so that every order of reduction has the same exact result, also an
// average and a product of 16-bit floats.
std::vector<int> numbers_of(int rank, int ranks, ReduceOp op, std::size_t count) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < count; ++i) {
    const int small = 1 + static_cast<int>((index_of(rank) + i) % 3);
    numbers.push_back(op == ReduceOp::kAvg ? small * ranks : small);
  }
  return numbers;
}

double factor_of(int rank) { return 2 + rank % 2; }

Buffer expected_of(DType type, ReduceOp op, int ranks, std::size_t count) {
  std::vector<Buffer> inputs;
  std::vector<const std::byte*> sources;
  std::vector<double> factors;
  for (int r = 0; r < ranks; ++r) {
    inputs.push_back(elements_of(type, numbers_of(r, ranks, op, count)));
    factors.push_back(factor_of(r));
  }
  for (const Buffer& input : inputs) sources.push_back(input.data());
  Buffer result(inputs[0].size());
  std::byte* const to = result.data();
  collective::fold({.type = type, .op = op, .ranks = ranks, .factors = factors}, sources, {&to, 1}, count);
  return result;
}

struct Reduced {
  Status status;
  Buffer result;    // what this rank got
  Buffer expected;  // empty if it gets nothing
};

Reduced reduce_by(OpKind kind, DType type, ReduceOp op, std::size_t count, Backend& group) {
  const int n = group.size().value;
  const int own = group.rank().value;
  Buffer data = elements_of(type, numbers_of(own, n, op, count));
  const Buffer whole =
      collective::check_reducible(type, op).ok() ? expected_of(type, op, n, count) : Buffer();
  Call call{.kind = kind, .dtype = type, .reduce_op = op, .factor = factor_of(own), .root = Rank{n - 1}};
  if (kind == OpKind::kAllReduce) {
    const ByteSpan output = data;
    call.outputs = {&output, 1};
    const Status status = group.run(call);
    return {status, data, whole};
  }
  if (kind == OpKind::kReduce) {
    const ByteView input = data;
    const ByteSpan output = data;
    call.inputs = {&input, 1};
    if (own == n - 1) call.outputs = {&output, 1};
    const Status status = group.run(call);
    return {status, own == n - 1 ? data : Buffer(), own == n - 1 ? whole : Buffer()};
  }
  // Part r has the elements from r on, so that parts have different sizes.
  const std::size_t size = collective::size_of(type);
  std::vector<ByteView> inputs;
  for (int r = 0; r < n; ++r) inputs.push_back(ByteView(data).subspan(std::min(index_of(r), count) * size));
  Buffer result(inputs[index_of(own)].size());
  const ByteSpan output = result;
  call.inputs = inputs;
  call.outputs = {&output, 1};
  const Status status = group.run(call);
  Buffer part = whole;
  if (!part.empty()) part.erase(part.begin(), part.end() - static_cast<std::ptrdiff_t>(result.size()));
  return {status, result, part};
}

void every_type(Groups& groups, SupportTable& table) {
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
    for (int o = 0; o < collective::kReduceOps; ++o) {
      for (int t = 0; t < collective::kDTypes; ++t) {
        const auto type = static_cast<DType>(t);
        const auto op = static_cast<ReduceOp>(o);
        const std::string name = cat(collective::name_of(kind), ", ", collective::name_of(op));
        const Reduced got = reduce_by(kind, type, op, 257, groups.group());
        table.add(name, type, got.status.ok());
        if (got.status.ok()) {
          ASSERT_TRUE(text_of(got.result) == text_of(got.expected))
              << name << " of " << collective::name_of(type);
        } else {
          ASSERT_THAT(got.status.code(), ::testing::AnyOf(Code::kInvalid, Code::kUnsupported))
              << got.status.text();
        }
      }
    }
  }
}

void any_count(Groups& groups, SupportTable& /*table*/) {
  std::vector<float> many(600'000, 1.F);
  ASSERT_OK(all_reduce(groups.group(), std::span(many)));
  EXPECT_EQ(many, std::vector<float>(many.size(), static_cast<float>(groups.size().value)));
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{20'000}}) {
        const Reduced got = reduce_by(kind, type, ReduceOp::kSum, count, groups.group());
        ASSERT_OK(got.status);
        ASSERT_TRUE(text_of(got.result) == text_of(got.expected))
            << collective::name_of(kind) << " of " << count;
      }
    }
  }
}

template <typename T>
void check_nan(Backend& group) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (int who = 0; who < group.size().value; ++who) {
      std::vector<T> data{1, 2, 3};
      if (group.rank().value == who) data[1] = std::numeric_limits<T>::quiet_NaN();
      ASSERT_OK(all_reduce(group, std::span(data), op));
      EXPECT_EQ(data[0], 1);
      EXPECT_TRUE(std::isnan(data[1])) << "the NaN of rank " << who;
      EXPECT_EQ(data[2], 3);
    }
  }
}

void nan_wins(Groups& groups, SupportTable& /*table*/) {
  check_nan<float>(groups.group());
  check_nan<double>(groups.group());
}

// 1 + 1/256 on each of n ranks: with 16-bit partial sums the small part would be lost.
void rounds_once(Groups& groups, SupportTable& /*table*/) {
  const int n = groups.size().value;
  std::vector<std::uint16_t> data(100, static_cast<std::uint16_t>(0x3B80));            // bfloat16 1/256
  if (groups.rank().value == 0) data.assign(100, static_cast<std::uint16_t>(0x3F80));  // 1
  const ByteSpan bytes = bytes_of(data);
  ASSERT_OK(
      groups.group().run({.kind = OpKind::kAllReduce, .dtype = DType::kBFloat16, .outputs = {&bytes, 1}}));
  const auto exact = 1 + static_cast<float>(n - 1) / 256;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &exact, sizeof(bits));
  const std::uint32_t half_even = 0x7FFF + ((bits >> 16) & 1);
  EXPECT_THAT(data, ::testing::Each(static_cast<std::uint16_t>((bits + half_even) >> 16)));
}

}  // namespace

Buffer elements_of(DType type, const std::vector<int>& numbers) {
  switch (type) {
    case DType::kBool:
      return made_of<std::uint8_t>(numbers, [](int number) { return static_cast<std::uint8_t>(number % 2); });
    case DType::kUint8:
    case DType::kInt8:
    case DType::kFloat8:
      return converted<std::uint8_t>(numbers);
    case DType::kInt16:
    case DType::kUint16:
      return converted<std::uint16_t>(numbers);
    case DType::kInt32:
    case DType::kUint32:
      return converted<std::uint32_t>(numbers);
    case DType::kInt64:
    case DType::kUint64:
      return converted<std::uint64_t>(numbers);
    case DType::kFloat16:
    case DType::kBFloat16:
      return rounded(type, numbers);
    case DType::kFloat32:
      return converted<float>(numbers);
    case DType::kFloat64:
      return converted<double>(numbers);
    case DType::kComplex64:
      return complex_of<float>(numbers);
    case DType::kComplex128:
      return complex_of<double>(numbers);
  }
  return {};
}

std::vector<BackendCase> reduction_cases() {
  return {{"Reduction", "OfEveryType", every_type},
          {"Reduction", "OfAnyCount", any_count},
          {"Reduction", "ANanWinsInMinAndMax", nan_wins, "a NaN wins in min and max"},
          {"Reduction", "SixteenBitSumsAreRoundedOnce", rounds_once, "16-bit sums are rounded once"}};
}

}  // namespace lockstep::testing
