// How numbers are reduced by MPI: the type and operation that it knows them by, and what is done before and
// after.
//
// 16-bit floats travel as float32, premultiplied elements are multiplied before, and an average is divided
// after: with the kernels of collective/reduction.h, so that each is rounded as everywhere. MPI's own
// operations do the rest, except where theirs differ from ours: min and max, in which a NaN wins, and the
// product of complex numbers.
//
// Thread safety: any thread.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"
#include "lockstep/collective/call.h"

namespace lockstep::backend::mpi {

class Reduction {
 public:
  // `call` reduces, and was checked.
  static Result<Reduction> of(const Call& call, int ranks);

  MPI_Datatype type() const { return type_; }
  MPI_Op op() const { return op_; }
  // Of an element while it travels.
  std::size_t width() const { return width_; }
  std::size_t width_of_element() const { return element_; }

  // Whether what travels is something else than the elements that the caller gave.
  bool has_before() const { return widened_ || call_op_ == ReduceOp::kPremulSum; }
  bool has_after() const { return widened_ || call_op_ == ReduceOp::kAvg; }
  // Elements to what travels, and back; in place where both are the same size.
  void before(ByteView elements, std::byte* travelling) const;
  void after(const std::byte* travelled, ByteSpan elements) const;

 private:
  Reduction(const Call& call, int ranks);

  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  MPI_Op op_ = MPI_OP_NULL;
  DType dtype_;
  ReduceOp call_op_;
  double factor_;
  int ranks_;
  std::size_t element_;
  std::size_t width_;
  bool widened_;
};

}  // namespace lockstep::backend::mpi
