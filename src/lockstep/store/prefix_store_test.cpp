#include "lockstep/store/prefix_store.h"

#include <gmock/gmock.h>

#include <memory>
#include <utility>

#include "lockstep/store/hash_store.h"
#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/store_conformance.h"

namespace lockstep::testing {
namespace {

using ::testing::UnorderedElementsAre;
using namespace std::chrono_literals;
using Names = std::vector<std::string>;

// Two prefixes, one in the other, in a store that holds keys of others too.
class NestedPrefixStores final : public StoreFamily {
 public:
  explicit NestedPrefixStores(const StoreOptions& options) : first_(options) {
    EXPECT_OK(first_.set("outer", {}));
    EXPECT_OK(first_.set("outer/innermost/key", {}));
  }
  std::unique_ptr<Store> open() override {
    auto outer = std::make_shared<PrefixStore>("outer", std::move(first_.clone()).value());
    return std::make_unique<PrefixStore>("inner", std::move(outer));
  }

 private:
  HashStore first_;
};
LOCKSTEP_STORE_CONFORMANCE(PrefixStore, NestedPrefixStores);

TEST(PrefixStore, ItsKeysAndQueuesCarryThePrefix) {
  const auto inner = std::make_shared<HashStore>();
  PrefixStore store("job", inner);
  ASSERT_OK(store.set("key", bytes_of("1")));
  EXPECT_THAT(inner->get("job/key"), holds("1"));
  ASSERT_OK(store.queue_push("queue", bytes_of("item")));
  EXPECT_THAT(inner->queue_len("job/queue"), IsOkAnd(1));
  EXPECT_THAT(inner->queue_len("queue"), IsOkAnd(0));
  PrefixStore unnamed("", inner);
  ASSERT_OK(unnamed.set("key", bytes_of("2")));
  EXPECT_THAT(inner->get("/key"), holds("2"));
}

TEST(PrefixStore, SeesItsOwnKeysOnly) {
  const auto inner = std::make_shared<HashStore>();
  PrefixStore job("job", inner), other("job2", inner);
  ASSERT_OK(inner->set("job", {}));
  ASSERT_OK(job.set("a", {}));
  ASSERT_OK(job.set("b/c", {}));
  ASSERT_OK(other.set("d", {}));
  EXPECT_THAT(job.list_keys(), IsOkAnd(UnorderedElementsAre("a", "b/c")));
  EXPECT_THAT(job.num_keys(), IsOkAnd(2));
  EXPECT_THAT(inner->num_keys(), IsOkAnd(4));
}

TEST(PrefixStore, TheLimitIsOnPrefixAndKeyTogether) {
  PrefixStore store("prefix", std::make_shared<HashStore>());
  EXPECT_OK(store.set(std::string(store::kMaxKeySize - 7, 'k'), {}));
  EXPECT_THAT(store.set(std::string(store::kMaxKeySize - 6, 'k'), {}), FailureIs(Failure::kLimitExceeded));
}

TEST(PrefixStore, ItsTimeoutIsItsOwn) {
  const auto inner = std::make_shared<HashStore>(store::StoreOptions{.timeout = 7s});
  PrefixStore store("prefix", inner);
  EXPECT_EQ(store.timeout(), 7s);
  store.set_timeout(1s);
  EXPECT_EQ(inner->timeout(), 7s);
}

}  // namespace
}  // namespace lockstep::testing
