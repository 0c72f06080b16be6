#include "lockstep/store/file_store.h"

#include <gmock/gmock.h>

#include <memory>
#include <utility>

#include "lockstep/testing/status_matchers.h"
#include "lockstep/testing/store_conformance.h"
#include "lockstep/testing/temporary_folder.h"

namespace lockstep::testing {
namespace {

class FileStores final : public StoreFamily {
 public:
  explicit FileStores(const StoreOptions& options) : options_(options) {}
  std::unique_ptr<Store> open() override { return std::move(FileStore::open(path_, options_)).value(); }

 private:
  const StoreOptions options_;
  const TemporaryFolder folder_;
  const std::string path_ = folder_.path("store");
};
LOCKSTEP_STORE_CONFORMANCE(FileStore, FileStores);

}  // namespace
}  // namespace lockstep::testing
