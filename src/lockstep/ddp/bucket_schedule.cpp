#include "lockstep/ddp/bucket_schedule.h"

#include <cstdint>

namespace lockstep::ddp {

BucketSchedule::BucketSchedule(const DataParallelOptions& options)
    : limits_(limits_of(options)),
      first_is_one_(!options.find_unused_parameters && options.bucket_cap_mb_list.empty()),
      follows_order_(!options.find_unused_parameters) {}

BucketPlan BucketSchedule::first_plan(const Gradients& gradients) const {
  const BucketLimits unlimited = {SIZE_MAX};
  return plan_before_first_pass(gradients.planned(), first_is_one_ ? unlimited : limits_);
}

void BucketSchedule::saw(const std::vector<std::size_t>& order, const tensor::ProcessGroup& group) {
  if (!follows_order_) return;
  {
    const MutexLock lock(mutex_);
    if (rebuilt_ || order_) return;
  }
  auto of_first = std::make_shared<const OrderOfFirst>(order, group);
  const MutexLock lock(mutex_);
  order_ = std::move(of_first);
}

void BucketSchedule::bring_up_to_date(Gradients& gradients) {
  std::shared_ptr<const OrderOfFirst> of_first;
  {
    const MutexLock lock(mutex_);
    of_first = order_;
  }
  if (!of_first) return;
  const std::vector<std::size_t> order = of_first->get();
  const MutexLock lock(mutex_);
  if (order_ != of_first) return;  // another was faster
  gradients.lay_out(plan_in_order(gradients.planned(), order, limits_));
  order_ = nullptr;
  rebuilt_ = true;
}

bool BucketSchedule::has_rebuilt() const {
  const MutexLock lock(mutex_);
  return rebuilt_;
}

void BucketSchedule::begin_anew() {
  const MutexLock lock(mutex_);
  order_ = nullptr;
  rebuilt_ = false;
}

}  // namespace lockstep::ddp
