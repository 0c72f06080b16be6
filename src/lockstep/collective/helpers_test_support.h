// Helpers for tests: a thread for every part.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/collective/helpers.h"

namespace lockstep::collective {

// Thread safety: any thread.
class Crowd final : public Helpers {
 public:
  explicit Crowd(int count) : count_(count) {}
  int count() const override { return count_; }
  void run(int parts, const std::function<void(int)>& work) override {
    for (int most = most_; most < parts && !most_.compare_exchange_weak(most, parts);) {
    }
    std::vector<std::thread> threads;
    for (int part = 0; part < parts; ++part) threads.emplace_back([&work, part] { work(part); });
    for (std::thread& thread : threads) thread.join();
  }
  // The most that have worked together.
  int most() const { return most_; }

 private:
  const int count_;
  std::atomic<int> most_ = 0;
};

}  // namespace lockstep::collective
