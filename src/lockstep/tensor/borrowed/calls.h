// Collectives as calls of a c10d::Backend, and its exceptions as Status. Internal.
//
//   barrier         barrier
//   broadcast       broadcast, for each buffer
//   all_reduce      allreduce, for each buffer
//   reduce          reduce, for each buffer; of a copy, where the bytes may not be written to
//   all_gather      allgather, for each buffer; of uneven sizes a broadcast from each rank
//   gather, scatter gather, scatter, for each buffer
//   reduce_scatter  reduce_scatter, for each buffer; of uneven sizes a reduce to each rank
//   all_to_all      alltoall
//
// What is only moved travels as bytes, whatever its type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/call.h"

namespace lockstep::tensor {

// Whether c10d is there for it, as far as this rank can see: kUnsupported for uneven gather and scatter.
Status check_borrowed(const Call& call, WorldSize size);

// Where the bytes are and how they are kept.
struct BorrowedBytes {
  c10::DeviceType device = c10::DeviceType::CPU;
  std::shared_ptr<const void> keep = {};  // for as long as c10d has the tensor
};
// `bytes` as a tensor of elements of `type`, where they lie.
at::Tensor tensor_of(ByteView bytes, at::ScalarType type, const BorrowedBytes& place);

class BorrowedCall {
 public:
  // `call` was checked, and lives as long as this. Throws what c10d throws.
  BorrowedCall(c10d::Backend& lent, const Call& call, BorrowedBytes place, const Deadline& deadline);

  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  // All of it is under way afterwards.
  Works begin();

 private:
  void begin_buffer(std::size_t buffer);
  void begin_reduce(ByteView input, ByteSpan output, int root);
  void begin_broadcast(ByteSpan bytes, int root);
  void begin_all_gather(std::size_t buffer);
  void begin_gather(std::size_t buffer);
  void begin_scatter(std::size_t buffer);
  void begin_reduce_scatter(std::size_t buffer);
  void begin_all_to_all();

  std::vector<at::Tensor> inputs(std::size_t from, std::size_t count) const;
  std::vector<at::Tensor> outputs(std::size_t from, std::size_t count) const;
  at::Tensor tensor(ByteView bytes) const;
  template <typename Options>
  Options options() const;
  void add(c10::intrusive_ptr<c10d::Work> work) { works_.push_back(std::move(work)); }

  c10d::Backend& lent_;
  const Call& call_;
  const BorrowedBytes place_;
  const std::size_t ranks_;
  const std::chrono::milliseconds timeout_;
  Works works_;
};

// Of a wait of c10d's: at least 1, because 0 is none.
std::chrono::milliseconds milliseconds_to(const Deadline& deadline);

// What `call` of c10d (such as "allreduce") has thrown: kUnsupported, kInvalid, kTimeout, kDisconnected, as
// far as it says; else kInternal.
Status status_of_c10d(std::string_view call, const std::exception_ptr& thrown);

}  // namespace lockstep::tensor
