// What LOCKSTEP_SPAWN_FD names: never a crash, and what is taken is what would be written.
#include <cstdlib>

#include "lockstep/launch/spawn_assignment.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto assignment = launch::assignment_from_bytes(bytes);
  if (!assignment.ok()) return 0;
  const auto again = launch::assignment_to_bytes(*assignment);
  if (!again.ok() || *again != Buffer(bytes.begin(), bytes.end())) std::abort();
  return 0;
}
