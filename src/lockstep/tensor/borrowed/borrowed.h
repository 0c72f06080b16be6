// A backend on an object of torch's own c10d::Backend that the program hands over: for hardware that has only
// that.
//
//   lockstep::init_process_group({.backend = "cuda:theirs",
//                                 .backends = {{"theirs", lockstep::borrowed_backend(make_theirs, {.device =
//                                 c10::kCUDA})}}});
//
// Every collective becomes calls of that object; what it does not have is Unsupported. It keeps the contract
// of backend.h, with these differences, which are c10d's:
// - No order of a reduction is promised, nor how 16-bit sums are rounded.
// - Uneven sizes: of all_gather they travel as broadcasts, of reduce_scatter as reduces; gather and scatter
//   have none (kUnsupported).
// - c10d cannot stop an operation. After a timeout the group is dead, its abort() is called, and what it
// still
//   uses is kept, if the operation came with a `keep`; a synchronous call on tensors has none, so their
//   memory may still be written to.
// - Failures travel through the store: a rank hears of an abort of another when it asks failure(), or when
// its
//   own operation ends badly. A failure is typed as far as c10d says what it was.
// - Messages: tags have 31 bits. A receive that gives up is not withdrawn. Whether a message is complete some
//   c10d backends know only when it was waited for; a callback costs a thread.
// - On another device than the CPU a call returns when the operation is enqueued, and wait() blocks the
//   stream that was current when it was started.
//
// This header and its .cpp are the one part of Lockstep that knows c10d.
// Thread safety: any thread.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/membership.h"
#include "lockstep/tensor/backend_source.h"

namespace c10d {
class Backend;
}

namespace lockstep::tensor {

struct BorrowedOptions {
  // Behaviour.
  c10::DeviceType device = c10::DeviceType::CPU;  // whose tensors it takes
  // Performance.
  // The same on all ranks. On other devices than the CPU calls are never compared: it would cost the host a
  // wait for the device.
  CompareCalls compare_calls = CompareCalls::kAlways;
};

// Makes the object for one group. Its rank and size are the plan's. Shared with the program. What it throws
// is the error of the one who wanted a group.
using MakeBorrowed = std::function<c10::intrusive_ptr<c10d::Backend>(const GroupPlan& plan)>;
BackendSource borrowed_backend(MakeBorrowed make, const BorrowedOptions& options = {});

// One group alone. kInvalid if the object says another rank or size than the plan. Without a store in the
// plan failures do not travel, and monitored_barrier() is c10d's.
Result<std::unique_ptr<Backend>> borrow(c10::intrusive_ptr<c10d::Backend> lent, GroupPlan plan,
                                        const BorrowedOptions& options = {});

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::borrow;
using tensor::borrowed_backend;
using tensor::BorrowedOptions;
using tensor::MakeBorrowed;
}  // namespace lockstep
