#include "lockstep/collective/dtype.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/base/wire_table.h"

namespace lockstep::collective {
namespace {

struct TypeInfo {
  std::string_view name;
  std::size_t size;
  enum Kind { kBoolean, kInteger, kReal, kComplex, kOpaque } kind;
};
constexpr TypeInfo kTypes[kDTypes] = {
    {"bool", 1, TypeInfo::kBoolean},        {"uint8", 1, TypeInfo::kInteger},
    {"int8", 1, TypeInfo::kInteger},        {"int16", 2, TypeInfo::kInteger},
    {"int32", 4, TypeInfo::kInteger},       {"int64", 8, TypeInfo::kInteger},
    {"uint16", 2, TypeInfo::kInteger},      {"uint32", 4, TypeInfo::kInteger},
    {"uint64", 8, TypeInfo::kInteger},      {"float16", 2, TypeInfo::kReal},
    {"bfloat16", 2, TypeInfo::kReal},       {"float32", 4, TypeInfo::kReal},
    {"float64", 8, TypeInfo::kReal},        {"complex64", 8, TypeInfo::kComplex},
    {"complex128", 16, TypeInfo::kComplex}, {"float8", 1, TypeInfo::kOpaque},
};
constexpr std::string_view kOps[kReduceOps] = {"sum",  "avg", "product", "min",       "max",
                                               "band", "bor", "bxor",    "premul_sum"};

// They travel as numbers: both sides of a connection say by which table.
static_assert(std::ranges::equal(kTypes, base::kWireTypes, {}, &TypeInfo::name));
static_assert(std::ranges::equal(kOps, base::kWireOps));

const TypeInfo& info(DType type) { return kTypes[static_cast<std::size_t>(type)]; }

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
}

bool reducible(TypeInfo::Kind kind, ReduceOp op) {
  switch (kind) {
    case TypeInfo::kBoolean:
      return op != ReduceOp::kAvg && op != ReduceOp::kPremulSum;
    case TypeInfo::kInteger:
      return true;
    case TypeInfo::kReal:
      return !is_bitwise(op);
    case TypeInfo::kComplex:
      return !is_bitwise(op) && op != ReduceOp::kMin && op != ReduceOp::kMax;
    case TypeInfo::kOpaque:
      return false;
  }
  return false;
}

}  // namespace

bool is_known(DType type) { return static_cast<std::size_t>(type) < kDTypes; }
std::size_t size_of(DType type) { return info(type).size; }
std::string_view name_of(DType type) { return info(type).name; }
std::string_view name_of(ReduceOp op) { return kOps[static_cast<std::size_t>(op)]; }

Status check_reducible(DType type, ReduceOp op) {
  const auto number = static_cast<int>(op);
  if (number < 0 || number >= kReduceOps)
    return Status::invalid(cat("there is no reduction number ", number, "."));
  if (reducible(info(type).kind, op)) return {};
  std::vector<std::string> possible;
  for (int i = 0; i < kReduceOps; ++i) {
    const auto other = static_cast<ReduceOp>(i);
    if (reducible(info(type).kind, other)) possible.emplace_back(name_of(other));
  }
  if (possible.empty()) {
    return Status::invalid(
        cat(name_of(type), " can be moved but not reduced: convert it to a wider type first."));
  }
  return Status::invalid(
      cat(name_of(op), " is not defined on ", name_of(type), "; it has ", base::join(possible), "."));
}

Status check_factor(DType type, double factor) {
  if (info(type).kind != TypeInfo::kInteger) return {};
  const bool has_sign = type >= DType::kInt8 && type <= DType::kInt64;
  const int bits = static_cast<int>(8 * size_of(type)) - (has_sign ? 1 : 0);
  const double limit = std::ldexp(1.0, bits);
  if (factor >= (has_sign ? -limit : 0.0) && factor < limit && std::trunc(factor) == factor) return {};
  return Status::invalid(cat("premul_sum on ", name_of(type), " takes a whole number from ",
                             has_sign ? cat("-2^", bits) : "0", " to 2^", bits, " - 1 as its factor, not ",
                             factor, "."));
}

}  // namespace lockstep::collective
