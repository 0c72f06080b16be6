#include "lockstep/launch/store_coordinator.h"

#include <gmock/gmock.h>

#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/thread_limit.h"

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;

// F31. What the agents do together is tested with real ones, in tests/world.
TEST(StoreCoordinator, WithoutAThreadItSaysSo) {
  const lockstep::testing::NoMoreThreads limit;
  EXPECT_THAT(StoreCoordinator::start({}, Clock::steady()).status().message(),
              HasSubstr("lockstep-agent cannot be started"));
}

}  // namespace
}  // namespace lockstep::launch
