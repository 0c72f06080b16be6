#include "extension/trace.h"

#include <chrono>
#include <utility>

namespace lockstep::python {
namespace {

constexpr std::size_t kCapacity = 2048;

// What torch's own recorder notes: the traces of several hosts are laid side by side.
std::int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void TracedTensors::add(c10::ArrayRef<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    const bool has_sizes = tensor.defined() && !tensor.is_sparse();
    if (has_sizes) sizes_.append(tensor.sizes().begin(), tensor.sizes().end());
    ends_.push_back(static_cast<std::uint32_t>(sizes_.size()));
    types_.push_back(tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined);
  }
}

std::vector<std::vector<std::int64_t>> TracedTensors::sizes() const {
  std::vector<std::vector<std::int64_t>> all;
  std::size_t at = 0;
  for (const std::uint32_t end : ends_) {
    all.emplace_back(sizes_.begin() + at, sizes_.begin() + end);
    at = end;
  }
  return all;
}

std::vector<std::string> TracedTensors::types() const {
  std::vector<std::string> all;
  all.reserve(types_.size());
  for (const at::ScalarType type : types_) all.emplace_back(c10::toString(type));
  return all;
}

Trace& Trace::of_collectives() {
  static Trace* const only = new Trace;  // never destroyed: threads may still note what has ended
  return *only;
}

Trace& Trace::of_messages() {
  static Trace* const only = new Trace;
  return *only;
}

Trace::Ticket Trace::begin(TracedOperation operation) {
  Entry entry{.operation = std::move(operation), .started_ns = now_ns()};
  const MutexLock lock(mutex_);
  entry.id = next_++;
  if (ring_.size() < kCapacity) {
    ring_.push_back(std::move(entry));
  } else {
    std::swap(ring_[entry.id % kCapacity], entry);
  }
  return next_ - 1;
}

void Trace::end(Ticket ticket, State how) {
  const std::int64_t now = now_ns();
  const MutexLock lock(mutex_);
  Entry& entry = ring_[ticket % kCapacity];
  if (entry.id != ticket) return;
  entry.state = how;
  entry.ended_ns = now;
}

std::vector<Trace::Entry> Trace::entries() const {
  const MutexLock lock(mutex_);
  std::vector<Entry> all;
  all.reserve(ring_.size());
  const std::size_t oldest = next_ % std::max<std::size_t>(ring_.size(), 1);
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    const Entry& entry = ring_[(oldest + i) % ring_.size()];
    if (entry.state != State::kForgotten) all.push_back(entry);
  }
  return all;
}

}  // namespace lockstep::python
