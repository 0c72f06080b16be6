// While it lives, no thread can be started in this process: each would need more stack than there are
// addresses. It stands for a limit of processes, which does not bind root.
//
// Thread safety: one at a time.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace lockstep::testing {

class NoMoreThreads {
 public:
  NoMoreThreads() {
    constexpr std::size_t kTooMuch = std::size_t{1} << 60;
    pthread_attr_t huge;
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    EXPECT_EQ(pthread_attr_init(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, kTooMuch), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace lockstep::testing
