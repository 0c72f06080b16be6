// How a collective reduces: a ReduceOp, and the factor that premul_sum has.
#pragma once

#include "lockstep/collective/dtype.h"

namespace lockstep::tensor {

struct Reduction {
  // Implicit, so that `.op = ReduceOp::kAvg` reads as it should.
  constexpr Reduction(ReduceOp reduce_op = ReduceOp::kSum) : op(reduce_op) {}
  constexpr Reduction(ReduceOp reduce_op, double by) : op(reduce_op), factor(by) {}
  ReduceOp op;
  double factor = 1;
};

// Each rank's elements times this rank's factor, then summed.
constexpr Reduction premul_sum(double factor) { return {ReduceOp::kPremulSum, factor}; }

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::premul_sum;
using tensor::Reduction;
}  // namespace lockstep
