#include "tools/bench/scratch_folder.h"

#include <cerrno>
#include <cstdlib>
#include <string>

#include "lockstep/base/text.h"

namespace lockstep::bench {

Result<ScratchFolder> ScratchFolder::make() {
  std::string name = (std::filesystem::temp_directory_path() / "lockstep-bench.XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    return Status::from_errno(cat("no folder can be made as ", name), errno);
  return ScratchFolder(name);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep::bench
