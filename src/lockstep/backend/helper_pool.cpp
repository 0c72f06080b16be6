#include "lockstep/backend/helper_pool.h"

#include <algorithm>
#include <chrono>

#include "lockstep/backend/logger.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/pause_cpu.h"
#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"

namespace lockstep::backend {
namespace {

constexpr Duration kSpin = std::chrono::microseconds(20);
constexpr int kPauses = 10'000;
constexpr int kMostHelpers = 4;

}  // namespace

int helpers_for(int ranks, int cores) { return std::clamp(cores / std::max(1, ranks), 1, kMostHelpers); }

HelperPool::HelperPool(int count) : count_(std::max(1, count)), fork_generation_(base::fork_generation()) {}

void HelperPool::set_count(int count) { count_ = std::max(1, count); }

HelperPool::~HelperPool() {
  if (base::fork_generation() != fork_generation_) {
    for (std::thread& thread : threads_) base::abandon(thread);
    return;
  }
  stop_ = true;
  rounds_.fetch_add(1, std::memory_order_release);
  rounds_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void HelperPool::start() {
  started_ = true;
  for (int i = 1; i < count_; ++i) {
    Result<std::thread> thread = base::start_thread("lockstep-help", [this] { help(); });
    if (!thread.ok()) {
      kLog.warn(cat(thread.status().message(), "; large operations run on fewer threads"));
      return;
    }
    threads_.push_back(std::move(*thread));
  }
}

void HelperPool::run(int parts, const std::function<void(int)>& work) {
  const bool helped = count_ > 1 && parts > 1 && base::fork_generation() == fork_generation_ &&
                      !busy_.exchange(true, std::memory_order_acquire);
  if (!helped) {
    for (int part = 0; part < parts; ++part) work(part);
    return;
  }
  if (!started_) start();
  work_ = &work;
  left_.store(parts, std::memory_order_relaxed);
  tickets_.store(static_cast<std::uint64_t>(parts) << 32U, std::memory_order_release);
  rounds_.fetch_add(1, std::memory_order_release);
  rounds_.notify_all();
  take_parts();
  // Whoever has taken a part is at work on it, unless it has lost its core.
  for (int pauses = 0; left_.load(std::memory_order_acquire) != 0; ++pauses) {
    if (pauses < kPauses) {
      base::pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
  busy_.store(false, std::memory_order_release);
}

void HelperPool::take_parts() {
  for (;;) {
    const std::uint64_t ticket = tickets_.fetch_add(1, std::memory_order_acq_rel);
    const auto part = static_cast<std::uint32_t>(ticket);
    if (part >= static_cast<std::uint32_t>(ticket >> 32U)) return;
    (*work_)(static_cast<int>(part));
    left_.fetch_sub(1, std::memory_order_release);
  }
}

void HelperPool::help() {
  std::uint32_t seen = 0;
  while (!stop_) {
    const Deadline spin = Clock::steady().in(kSpin);
    while (rounds_.load(std::memory_order_acquire) == seen && !spin.expired()) base::pause_cpu();
    rounds_.wait(seen, std::memory_order_acquire);
    seen = rounds_.load(std::memory_order_acquire);
    take_parts();
  }
}

}  // namespace lockstep::backend
