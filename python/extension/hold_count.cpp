#include "extension/hold_count.h"

#include "lockstep/base/fork_guard.h"

namespace lockstep::python {
namespace {

constexpr std::uint64_t kNumber = 0xffff'ffff;

std::uint64_t this_process() { return base::fork_generation() << 32U; }

}  // namespace

HoldCount::Hold::Hold(HoldCount& count) : count_(count), process_(this_process()) {
  std::uint64_t seen = count_.state_;
  while (!count_.state_.compare_exchange_weak(seen, ((seen & ~kNumber) == process_ ? seen : process_) + 1)) {
  }
}

// One of the parent's, in a child, is counted there.
HoldCount::Hold::~Hold() {
  std::uint64_t seen = count_.state_;
  do {
    if ((seen & ~kNumber) != process_) return;
  } while (!count_.state_.compare_exchange_weak(seen, seen - 1));
  if ((seen & kNumber) == 1) count_.none_.ring();
}

std::uint64_t HoldCount::held() const {
  const std::uint64_t seen = state_;
  return (seen & ~kNumber) == this_process() ? seen & kNumber : 0;
}

void HoldCount::wait_for_none(const Deadline& deadline) {
  const auto none = [this] { return held() == 0; };
  while (!none() && !deadline.expired()) none_.sleep(none, deadline.remaining());
}

}  // namespace lockstep::python
