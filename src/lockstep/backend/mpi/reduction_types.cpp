#include "lockstep/backend/mpi/reduction_types.h"

#include <array>
#include <cstring>

#include "lockstep/backend/mpi/library.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/reduction.h"

namespace lockstep::backend::mpi {
namespace {

using collective::fold;
using collective::Fold;

MPI_Datatype datatype_of(DType type) {
  switch (type) {
    case DType::kBool:
    case DType::kUint8:
      return MPI_UINT8_T;
    case DType::kInt8:
      return MPI_INT8_T;
    case DType::kInt16:
      return MPI_INT16_T;
    case DType::kInt32:
      return MPI_INT32_T;
    case DType::kInt64:
      return MPI_INT64_T;
    case DType::kUint16:
      return MPI_UINT16_T;
    case DType::kUint32:
      return MPI_UINT32_T;
    case DType::kUint64:
      return MPI_UINT64_T;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    case DType::kComplex64:
      return MPI_C_FLOAT_COMPLEX;
    case DType::kComplex128:
      return MPI_C_DOUBLE_COMPLEX;
    case DType::kFloat8:
      break;
  }
  return MPI_DATATYPE_NULL;
}

bool is_16_bit_float(DType type) { return type == DType::kFloat16 || type == DType::kBFloat16; }
bool is_complex(DType type) { return type == DType::kComplex64 || type == DType::kComplex128; }
bool is_float(DType type) { return type == DType::kFloat32 || type == DType::kFloat64; }

template <DType kType, ReduceOp kOp>
void combine(void* in, void* in_and_out, int* count, MPI_Datatype* /*type*/) {
  const std::byte* const sources[] = {static_cast<const std::byte*>(in),
                                      static_cast<const std::byte*>(in_and_out)};
  auto* const result = static_cast<std::byte*>(in_and_out);
  fold({.type = kType, .op = kOp}, sources, {&result, 1}, static_cast<std::size_t>(*count));
}

// The operations that are ours, made when they are first used; MPI frees them with itself.
struct OwnOp {
  DType type;
  ReduceOp op;
  MPI_User_function* function;
  MPI_Op made = MPI_OP_NULL;
};
struct OwnOps {
  Mutex mutex;
  std::array<OwnOp, 6> all LOCKSTEP_GUARDED_BY(mutex) = {{
      {DType::kFloat32, ReduceOp::kMin, combine<DType::kFloat32, ReduceOp::kMin>},
      {DType::kFloat32, ReduceOp::kMax, combine<DType::kFloat32, ReduceOp::kMax>},
      {DType::kFloat64, ReduceOp::kMin, combine<DType::kFloat64, ReduceOp::kMin>},
      {DType::kFloat64, ReduceOp::kMax, combine<DType::kFloat64, ReduceOp::kMax>},
      {DType::kComplex64, ReduceOp::kProduct, combine<DType::kComplex64, ReduceOp::kProduct>},
      {DType::kComplex128, ReduceOp::kProduct, combine<DType::kComplex128, ReduceOp::kProduct>},
  }};
};

Result<MPI_Op> own_op(DType type, ReduceOp op) {
  static OwnOps ops;
  const MutexLock lock(ops.mutex);
  for (OwnOp& own : ops.all) {
    if (own.type != type || own.op != op) continue;
    constexpr int kCommutes = 1;
    if (own.made == MPI_OP_NULL)
      LOCKSTEP_TRY(status_of(MPI_Op_create(own.function, kCommutes, &own.made), "MPI_Op_create"));
    return own.made;
  }
  return Status::internal(
      cat(collective::name_of(op), " of ", collective::name_of(type), " is unknown to the mpi backend"));
}

Result<MPI_Op> operation_of(DType type, ReduceOp op) {
  const bool logical = type == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return logical ? MPI_LOR : MPI_SUM;
    case ReduceOp::kProduct:
      if (is_complex(type)) return own_op(type, op);
      return logical ? MPI_LAND : MPI_PROD;
    case ReduceOp::kMin:
      if (is_float(type)) return own_op(type, op);
      return logical ? MPI_LAND : MPI_MIN;
    case ReduceOp::kMax:
      if (is_float(type)) return own_op(type, op);
      return logical ? MPI_LOR : MPI_MAX;
    case ReduceOp::kBand:
      return logical ? MPI_LAND : MPI_BAND;
    case ReduceOp::kBor:
      return logical ? MPI_LOR : MPI_BOR;
    case ReduceOp::kBxor:
      return logical ? MPI_LXOR : MPI_BXOR;
  }
  return Status::internal("a reduction that the mpi backend does not know");
}

}  // namespace

Reduction::Reduction(const Call& call, int ranks)
    : type_(datatype_of(call.dtype)),
      dtype_(call.dtype),
      call_op_(call.reduce_op),
      factor_(call.factor),
      ranks_(ranks),
      element_(collective::size_of(call.dtype)),
      width_(collective::carry_size(call.dtype)),
      widened_(is_16_bit_float(call.dtype)) {}

Result<Reduction> Reduction::of(const Call& call, int ranks) {
  Reduction reduction(call, ranks);
  const DType travels = reduction.widened_ ? DType::kFloat32 : call.dtype;
  LOCKSTEP_ASSIGN(reduction.op_, operation_of(travels, call.reduce_op));
  return reduction;
}

void Reduction::before(ByteView elements, std::byte* travelling) const {
  if (!has_before()) {
    if (!elements.empty()) std::memcpy(travelling, elements.data(), elements.size());
    return;
  }
  const std::byte* const source = elements.data();
  const bool multiplied = call_op_ == ReduceOp::kPremulSum;
  fold({.type = dtype_,
        .op = multiplied ? ReduceOp::kPremulSum : ReduceOp::kSum,
        .factors = {&factor_, 1},
        .result = Fold::Form::kCarry},
       {&source, 1}, {&travelling, 1}, elements.size() / element_);
}

void Reduction::after(const std::byte* travelled, ByteSpan elements) const {
  if (!has_after()) {
    if (!elements.empty()) std::memcpy(elements.data(), travelled, elements.size());
    return;
  }
  std::byte* const to = elements.data();
  fold({.type = dtype_,
        .op = call_op_ == ReduceOp::kAvg ? ReduceOp::kAvg : ReduceOp::kSum,
        .ranks = ranks_,
        .first = Fold::Form::kCarry},
       {&travelled, 1}, {&to, 1}, elements.size() / element_);
}

}  // namespace lockstep::backend::mpi
