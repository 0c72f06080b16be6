#include "lockstep/collective/call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "lockstep/collective/same_call.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::collective {
namespace {

using lockstep::testing::StatusIs;
using ::testing::HasSubstr;

std::array<std::byte, 64> g_bytes{};
ByteSpan bytes(std::size_t size) { return ByteSpan(g_bytes).first(size); }

TEST(Call, AWrongOneIsRefusedInOneSentenceBeforeAnythingIsSent) {
  struct Case {
    const char* what;
    Call call;
    const char* message;
  };
  const std::vector<ByteView> one_in = {bytes(8)};
  const std::vector<ByteSpan> one_out = {bytes(8)};
  const std::vector<ByteSpan> three_out = {bytes(8), bytes(8), bytes(8)};
  const std::vector<ByteView> three_in = {bytes(8), bytes(8), bytes(8)};
  const std::vector<ByteView> odd_in = {bytes(8), bytes(4), bytes(8)};
  const std::vector<ByteSpan> ragged = {bytes(7)};
  const Case kCases[] = {
      {"root", {.kind = OpKind::kBroadcast, .root = Rank{3}, .outputs = one_out}, "the root is rank 3"},
      {"negative root", {.kind = OpKind::kReduce, .root = Rank{-1}, .inputs = one_in}, "the root is rank -1"},
      {"no buffer", {.kind = OpKind::kAllReduce}, "at least one is needed"},
      {"an input too many", {.kind = OpKind::kAllReduce, .inputs = one_in, .outputs = one_out}, "takes none"},
      {"too few outputs", {.kind = OpKind::kAllGather, .inputs = one_in, .outputs = one_out}, "3 ranks"},
      {"not on the root",
       {.kind = OpKind::kGather, .root = Rank{0}, .inputs = one_in, .outputs = three_out},
       "takes none"},
      {"half an element",
       {.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = ragged},
       "not a whole number of float32"},
      {"an op that the type has not",
       {.kind = OpKind::kAllReduce,
        .dtype = DType::kFloat32,
        .reduce_op = ReduceOp::kBand,
        .outputs = one_out},
       "float32"},
      {"no kind", {.kind = static_cast<OpKind>(77)}, "there is no operation number 77"},
      {"no type",
       {.kind = OpKind::kBroadcast, .dtype = static_cast<DType>(200), .outputs = one_out},
       "there is no type number 200"},
      {"no type, of a barrier", {.dtype = static_cast<DType>(16)}, "there is no type number 16"},
      {"own part",
       {.kind = OpKind::kReduceScatter, .dtype = DType::kFloat32, .inputs = odd_in, .outputs = one_out},
       "own part is 4 B as input and 8 B as output"},
      {"two batches", {.kind = OpKind::kAllToAll, .inputs = three_in, .outputs = one_out}, "3 ranks"},
  };
  for (const Case& c : kCases) {
    EXPECT_THAT(check(c.call, Rank{1}, WorldSize{3}), StatusIs(Code::kInvalid, HasSubstr(c.message)))
        << c.what;
  }
}

TEST(Call, AFactorThatAnIntegerCannotBeIsRefused) {
  struct Case {
    DType dtype;
    double factor;
    bool fits;
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Case kCases[] = {
      {DType::kInt32, 0.5, false},       {DType::kInt32, kNan, false},       {DType::kInt32, 1e30, false},
      {DType::kInt32, -3, true},         {DType::kInt8, -128, true},         {DType::kInt8, 128, false},
      {DType::kUint8, 255, true},        {DType::kUint8, -1, false},         {DType::kUint8, 256, false},
      {DType::kInt64, 0x1p62, true},     {DType::kInt64, 0x1p63, false},     {DType::kInt64, -0x1p63, true},
      {DType::kUint64, 0x1p63, true},    {DType::kUint64, 0x1p64, false},    {DType::kUint64, -0.0, true},
      {DType::kInt16, kInfinity, false}, {DType::kInt16, -kInfinity, false}, {DType::kFloat32, 0.5, true},
      {DType::kBFloat16, kNan, true},    {DType::kComplex64, 1e300, true},   {DType::kFloat64, -0.25, true},
  };
  const std::vector<ByteSpan> out = {bytes(16)};
  for (const Case& c : kCases) {
    const Call call{.kind = OpKind::kAllReduce,
                    .dtype = c.dtype,
                    .reduce_op = ReduceOp::kPremulSum,
                    .factor = c.factor,
                    .outputs = out};
    const Status status = check(call, Rank{1}, WorldSize{3});
    EXPECT_EQ(status.ok(), c.fits) << name_of(c.dtype) << " times " << c.factor << ": " << status.text();
    if (!c.fits) {
      EXPECT_THAT(status, StatusIs(Code::kInvalid, HasSubstr("takes a whole number from")));
    }
  }
  // Only premul_sum has one.
  const Call sum{.kind = OpKind::kAllReduce, .dtype = DType::kInt32, .factor = 0.5, .outputs = out};
  EXPECT_OK(check(sum, Rank{1}, WorldSize{3}));
}

TEST(Call, ARightOneIsAccepted) {
  const std::vector<ByteView> three_in = {bytes(8), bytes(8), bytes(8)};
  const std::vector<ByteSpan> three_out = {bytes(8), bytes(8), bytes(8)};
  const std::vector<ByteView> six_in = {bytes(8), bytes(8), bytes(8), bytes(4), bytes(4), bytes(4)};
  const std::vector<ByteSpan> two_out = {bytes(8), bytes(4)};
  EXPECT_OK(check({.kind = OpKind::kBarrier}, Rank{1}, WorldSize{3}));
  EXPECT_OK(
      check({.kind = OpKind::kAllToAll, .inputs = three_in, .outputs = three_out}, Rank{1}, WorldSize{3}));
  EXPECT_OK(check({.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = three_out}, Rank{1},
                  WorldSize{3}));
  EXPECT_OK(
      check({.kind = OpKind::kReduceScatter, .dtype = DType::kFloat32, .inputs = six_in, .outputs = two_out},
            Rank{1}, WorldSize{3}));
}

TEST(Call, WhatMustBeTheSameOnAllRanksIsInTheFingerprint) {
  const std::vector<ByteSpan> a = {bytes(8), bytes(16)};
  const std::vector<ByteSpan> b = {bytes(16), bytes(8)};
  const Call first{.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = a};
  const Call second{.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .outputs = b};
  EXPECT_EQ(fingerprint_of(first, 1, 2), fingerprint_of(first, 1, 2));
  EXPECT_NE(fingerprint_of(first, 1, 2), fingerprint_of(second, 1, 2)) << "same total, other sizes";
  EXPECT_NE(fingerprint_of(first, 1, 2), fingerprint_of(first, 2, 2));
  EXPECT_EQ(fingerprint_of(first, 1, 2).count, 6U);
  Call another = first;
  another.purpose = 7;
  EXPECT_NE(fingerprint_of(first, 1, 2), fingerprint_of(another, 1, 2));
  EXPECT_EQ(fingerprint_of(another, 1, 2), fingerprint_of(another, 1, 2));
  // A root's sizes are known to the root alone.
  const std::vector<ByteSpan> three = {bytes(8), bytes(8), bytes(8)};
  const std::vector<ByteView> in = {bytes(8)};
  EXPECT_EQ(fingerprint_of({.kind = OpKind::kGather, .inputs = in, .outputs = three}, 1, 2),
            fingerprint_of({.kind = OpKind::kGather, .inputs = in}, 1, 2));
}

// One whose parts are all of one size, or empty, was taken to be in another operation than the others.
TEST(Call, AnAllToAllIsOneForRanksWithEvenAndUnevenParts) {
  const auto fingerprint = [](std::vector<ByteView> in, std::vector<ByteSpan> out, OpKind kind) {
    return fingerprint_of({.kind = kind, .inputs = in, .outputs = out}, 1, 2);
  };
  const auto all_to_all = [&](std::vector<ByteView> in, std::vector<ByteSpan> out) {
    return fingerprint(std::move(in), std::move(out), OpKind::kAllToAll);
  };
  const Fingerprint even = all_to_all({bytes(8), bytes(8)}, {bytes(8), bytes(8)});
  const Fingerprint uneven = all_to_all({bytes(8), bytes(16)}, {bytes(8), bytes(0)});
  const Fingerprint larger = all_to_all({bytes(16), bytes(16)}, {bytes(16), bytes(16)});
  EXPECT_TRUE(can_be_one(even, uneven));
  EXPECT_EQ(common_to_all(even), common_to_all(uneven));
  EXPECT_FALSE(can_be_one(even, larger));
  // Nothing else is forgiven.
  const Fingerprint scatter = fingerprint({bytes(8), bytes(8)}, {bytes(8)}, OpKind::kReduceScatter);
  const Fingerprint other = fingerprint({bytes(8), bytes(16)}, {bytes(8)}, OpKind::kReduceScatter);
  EXPECT_FALSE(can_be_one(scatter, other));
  EXPECT_EQ(common_to_all(other), other);
}

}  // namespace
}  // namespace lockstep::collective
