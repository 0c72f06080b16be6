// A BucketSchedule says when the buckets of a model are made, and in which order of its gradients.
//
// Until a pass has been seen there is one bucket, as in torch, for nobody knows the order yet. When the first
// pass is over rank 0 tells the order that it saw, and when the next is made the buckets are made anew by it:
// the second pass has the same buckets on all ranks, however a rank comes to it. Where unused parameters are
// looked for, or every bucket's size is given, buckets are made once, in the reverse of the parameters' order
// (with sizes: and anew in the order that was seen). Internal.
//
// Thread safety: any thread; two that make buckets anew wait for each other, and nobody for the other ranks
// with a lock held. Errors: DistError, if the order never comes.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/gradients.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/parameters.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

class BucketSchedule final {
 public:
  explicit BucketSchedule(const DataParallelOptions& options);

  BucketPlan first_plan(const Gradients& gradients) const;
  // A pass is over, in which gradients became final in this order. A collective, after the first.
  void saw(const std::vector<std::size_t>& order, const tensor::ProcessGroup& group);
  // A pass is about to be made.
  void bring_up_to_date(Gradients& gradients);
  bool has_rebuilt() const;
  // As after construction.
  void begin_anew();

 private:
  const BucketLimits limits_;
  const bool first_is_one_;
  const bool follows_order_;
  mutable Mutex mutex_;
  // Until the buckets are made by it.
  std::shared_ptr<const OrderOfFirst> order_ LOCKSTEP_GUARDED_BY(mutex_);  // shared with who waits for it
  bool rebuilt_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::ddp
