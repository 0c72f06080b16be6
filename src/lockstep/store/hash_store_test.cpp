#include "lockstep/store/hash_store.h"

#include <memory>
#include <utility>

#include "lockstep/testing/store_conformance.h"

namespace lockstep::testing {
namespace {

class HashStores final : public StoreFamily {
 public:
  explicit HashStores(const StoreOptions& options) : first_(options) {}
  std::unique_ptr<Store> open() override { return std::move(first_.clone()).value(); }

 private:
  HashStore first_;
};
LOCKSTEP_STORE_CONFORMANCE(HashStore, HashStores);

}  // namespace
}  // namespace lockstep::testing
