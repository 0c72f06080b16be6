// KeyValues in a process without memory.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/store/key_values.h"
#include "lockstep/testing/status_matchers.h"

namespace lockstep::store {
namespace {

using lockstep::testing::FailureIs;

using Names = std::vector<std::string>;

TEST(KeyValues, WantOfMemoryIsAnErrorAndChangesNothing) {
  KeyValues state;
  const Buffer big(kMaxValueSize);
  ASSERT_OK(state.set("kept", bytes_of("old")));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit small = before;
  small.rlim_cur = 512ULL << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);
  Status status;
  int pushed = 0;
  for (; pushed < 100 && status.ok(); ++pushed) status = state.queue_push("q", big);
  const Status set = state.set("kept", big);
  const Status multi_set = state.multi_set(Names{"kept", "new"}, std::vector<ByteView>{big, big});
  const Status appended = state.append("kept", ByteView(big).first(kMaxValueSize - 3));
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);

  EXPECT_THAT(status, FailureIs(Failure::kNoMemory));
  EXPECT_THAT(set, FailureIs(Failure::kNoMemory));
  EXPECT_THAT(multi_set, FailureIs(Failure::kNoMemory));
  EXPECT_THAT(appended, FailureIs(Failure::kNoMemory));
  EXPECT_EQ(state.queue_len("q"), pushed - 1);
  EXPECT_EQ(text_of(state.get("kept").value()), "old");
  EXPECT_EQ(state.num_keys(), 1);
}

}  // namespace
}  // namespace lockstep::store
