// However it is written, a list expands to a bounded number of plain names, or to an error.
#include "lockstep/store/slurm_nodelist.h"

#include <cstddef>
#include <cstdint>

#include "lockstep/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto hosts = lockstep::store::expand_nodelist(text); hosts.ok()) {
    LOCKSTEP_CHECK(!hosts->empty() && hosts->size() <= lockstep::store::kMaxSlurmHosts,
                   "the number of hosts");
    for (const std::string& host : *hosts) {
      LOCKSTEP_CHECK(!host.empty() && host.size() <= 255, "the size of a name");
      LOCKSTEP_CHECK(host.find_first_of("[],") == std::string::npos, "nothing is left to expand");
    }
  }
  if (const auto counts = lockstep::store::expand_tasks_per_node(text); counts.ok()) {
    LOCKSTEP_CHECK(!counts->empty() && counts->size() <= lockstep::store::kMaxSlurmHosts,
                   "the number of nodes");
    for (const int count : *counts) LOCKSTEP_CHECK(count >= 1, "a count");
  }
  return 0;
}
