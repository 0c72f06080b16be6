// The number types that travel, and the operations that reduce them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::collective {

// The values are part of the wire format: append only.
enum class DType : std::uint8_t {
  kBool = 0,
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 6,
  kUint32 = 7,
  kUint64 = 8,
  kFloat16 = 9,
  kBFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  kFloat8 = 15,  // any one-byte float: moved, never reduced
};
constexpr int kDTypes = 16;

enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAvg = 1,  // the sum, divided once by the number of ranks; integers are cut towards zero
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
  kPremulSum = 8,  // each rank's elements times that rank's factor, then summed
};
constexpr int kReduceOps = 9;

bool is_known(DType type);  // one of the above
// Of a type that is known.
std::size_t size_of(DType type);
std::string_view name_of(DType type);   // "float32", as torch names it
std::string_view name_of(ReduceOp op);  // "sum"

// kInvalid, with a sentence that says which ops the type has, if `op` means nothing on `type`. Bool takes sum
// and max as "or", product and min as "and".
Status check_reducible(DType type, ReduceOp op);
// kInvalid for a factor of premul_sum that no element of `type` can be: integers take whole numbers within
// their range.
Status check_factor(DType type, double factor);

}  // namespace lockstep::collective

namespace lockstep {
using collective::DType;
using collective::ReduceOp;
}  // namespace lockstep
