// A rank of the conformance suite on the native backend: the world is the one of its environment.
//
//   native_conformance [--every-option] ...     what a World may be told besides: encrypted, several sockets
//   for
//                                               each pair, made at once, several threads
#include <string_view>

#include "lockstep/backend/world.h"
#include "lockstep/testing/backend_conformance.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  WorldOptions options;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--every-option") continue;
    options = {.privacy = backend::Privacy::kEncrypt,
               .memory_checks = backend::MemoryChecks::kOn,
               .threads = 3,
               .streams = 3,
               .connect = backend::Connect::kAtStart,
               .congestion_control = "reno"};
  }
  const auto join = [&options]() -> Result<std::unique_ptr<Groups>> {
    LOCKSTEP_ASSIGN(std::unique_ptr<World> world, World::join(options));
    return std::unique_ptr<Groups>(std::move(world));
  };
  return lockstep::testing::run_backend_conformance(argc, argv, "native, shm", join);
}
