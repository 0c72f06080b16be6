// The threads of a process that help its ranks' operations with large folds and copies.
//
// They are started when the first work comes, spin for a short while after each, and sleep in between. One
// piece of work at a time: whoever finds them at work does its own alone. In a forked child there are none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/collective/helpers.h"

namespace lockstep::backend {

// How many threads a rank may use, its own included, when `ranks` share `cores`: few, because memory and not
// the core is what a large fold waits for.
int helpers_for(int ranks, int cores);

class HelperPool final : public collective::Helpers {
 public:
  // `count` includes the thread that calls run().
  explicit HelperPool(int count);
  // Before the first run().
  void set_count(int count);
  ~HelperPool() override;
  HelperPool(const HelperPool&) = delete;
  HelperPool& operator=(const HelperPool&) = delete;

  int count() const override { return count_; }
  void run(int parts, const std::function<void(int)>& work) override;

 private:
  void start();
  void help();
  // Runs parts that nobody has taken yet.
  void take_parts();

  int count_;
  const std::uint64_t fork_generation_;
  std::vector<std::thread> threads_;  // written by whoever holds busy_, once
  bool started_ = false;              // likewise
  std::atomic<bool> busy_ = false;
  // The work at hand: written before tickets_, which publishes it.
  const std::function<void(int)>* work_ = nullptr;
  // The first part that nobody has taken, and above it how many there are. In one word, so that a helper that
  // comes late cannot take a number of one work for a part of the next.
  std::atomic<std::uint64_t> tickets_ = 0;
  std::atomic<int> left_ = 0;              // parts that have not returned
  std::atomic<std::uint32_t> rounds_ = 0;  // changes with every piece of work
  std::atomic<bool> stop_ = false;
};

}  // namespace lockstep::backend
