// The store's server without memory. F27 of the fault list.
#include <gmock/gmock.h>

#include "lockstep/base/text.h"
#include "store_process.h"

namespace lockstep::store {
namespace {

TEST(StoreProcess, OutOfMemoryItSaysSoAndGoesOn) {
  // 384 MiB of address space, of which the program and its libraries take a part.
  const StoreProcess process("ulimit -v 393216");
  const auto store = process.connect(LocalSocket::kOn);
  const Buffer value(kMaxValueSize);
  Status status;
  int stored = 0;
  while (status.ok() && stored < 100) status = store->set(cat("key/", stored++), value);
  EXPECT_THAT(status, ::testing::Not(::testing::Property(&Status::ok, true)));
  EXPECT_TRUE(status.failure() == Failure::kNoMemory || status.failure() == Failure::kStoreLost)
      << status.text();
  // Whoever asked too much may be shown out; the others are served, and memory comes back.
  const auto other = process.connect(LocalSocket::kOff);
  for (int i = 0; i < stored; ++i) EXPECT_OK(other->delete_key(cat("key/", i)));
  EXPECT_OK(other->set("key", value));
  EXPECT_OK(other->get("key"));
}

}  // namespace
}  // namespace lockstep::store
