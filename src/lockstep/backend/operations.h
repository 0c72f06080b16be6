// The collectives on arrays of numbers, each one line over Backend::run().
//
//   std::vector<float> gradients(1000);
//   Status status = lockstep::all_reduce(group, std::span(gradients), ReduceOp::kAvg);
//
// float, double, std::complex of them, bool and the integers have their own DType; for others (16-bit floats,
// coalesced and uneven forms) make a Call.
// Order, threads and errors are those of Backend.
#pragma once

#include <complex>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/base/bytes.h"
#include "lockstep/collective/call.h"

namespace lockstep::backend {

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, bool>) return DType::kBool;
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return DType::kComplex64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return DType::kComplex128;
  if constexpr (std::is_integral_v<T>) {
    if constexpr (sizeof(T) == 1) return std::is_signed_v<T> ? DType::kInt8 : DType::kUint8;
    if constexpr (sizeof(T) == 2) return std::is_signed_v<T> ? DType::kInt16 : DType::kUint16;
    if constexpr (sizeof(T) == 4) return std::is_signed_v<T> ? DType::kInt32 : DType::kUint32;
    if constexpr (sizeof(T) == 8) return std::is_signed_v<T> ? DType::kInt64 : DType::kUint64;
  }
}

inline Status barrier(Backend& group, const OpOptions& options = {}) {
  return group.run({.kind = OpKind::kBarrier}, options);
}

// In place.
template <typename T>
Status all_reduce(Backend& group, std::span<T> data, ReduceOp op = ReduceOp::kSum,
                  const OpOptions& options = {}) {
  const ByteSpan bytes = std::as_writable_bytes(data);
  return group.run(
      {.kind = OpKind::kAllReduce, .dtype = dtype_of<T>(), .reduce_op = op, .outputs = {&bytes, 1}}, options);
}

// In place; the result is the root's alone, the others' data stays as it is.
template <typename T>
Status reduce(Backend& group, std::span<T> data, Rank root, ReduceOp op = ReduceOp::kSum,
              const OpOptions& options = {}) {
  const ByteSpan bytes = std::as_writable_bytes(data);
  const ByteView input = bytes;
  Call call{
      .kind = OpKind::kReduce, .dtype = dtype_of<T>(), .reduce_op = op, .root = root, .inputs = {&input, 1}};
  if (group.rank() == root) call.outputs = {&bytes, 1};
  return group.run(call, options);
}

template <typename T>
Status broadcast(Backend& group, std::span<T> data, Rank root, const OpOptions& options = {}) {
  const ByteSpan bytes = std::as_writable_bytes(data);
  return group.run({.kind = OpKind::kBroadcast, .dtype = dtype_of<T>(), .root = root, .outputs = {&bytes, 1}},
                   options);
}

// `output` has room for the inputs of all ranks, in rank order.
template <typename T>
Status all_gather(Backend& group, std::span<const T> input, std::span<T> output,
                  const OpOptions& options = {}) {
  if (output.size() != input.size() * static_cast<std::size_t>(group.size().value))
    return Status::invalid("all_gather: the output has not the size of all inputs");
  const ByteView in = std::as_bytes(input);
  std::vector<ByteSpan> out;
  for (int i = 0; i < group.size().value; ++i)
    out.push_back(
        std::as_writable_bytes(output.subspan(static_cast<std::size_t>(i) * input.size(), input.size())));
  return group.run({.kind = OpKind::kAllGather, .dtype = dtype_of<T>(), .inputs = {&in, 1}, .outputs = out},
                   options);
}

// `input` is one part for each rank, in rank order, of the size of `output`.
template <typename T>
Status reduce_scatter(Backend& group, std::span<const T> input, std::span<T> output,
                      ReduceOp op = ReduceOp::kSum, const OpOptions& options = {}) {
  if (input.size() != output.size() * static_cast<std::size_t>(group.size().value))
    return Status::invalid("reduce_scatter: the input has not the size of all outputs");
  const ByteSpan out = std::as_writable_bytes(output);
  std::vector<ByteView> in;
  for (int i = 0; i < group.size().value; ++i)
    in.push_back(std::as_bytes(input.subspan(static_cast<std::size_t>(i) * output.size(), output.size())));
  return group.run({.kind = OpKind::kReduceScatter,
                    .dtype = dtype_of<T>(),
                    .reduce_op = op,
                    .inputs = in,
                    .outputs = {&out, 1}},
                   options);
}

}  // namespace lockstep::backend

namespace lockstep {
using backend::all_gather;
using backend::all_reduce;
using backend::barrier;
using backend::broadcast;
using backend::reduce;
using backend::reduce_scatter;
}  // namespace lockstep
