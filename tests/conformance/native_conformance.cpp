// A rank of the conformance suite on the native backend: the world is the one of its environment.
#include "lockstep/backend/world.h"
#include "lockstep/testing/backend_conformance.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  return testing::run_backend_conformance(argc, argv, "native, shm", []() -> Result<std::unique_ptr<Groups>> {
    LOCKSTEP_ASSIGN(std::unique_ptr<World> world, World::join());
    return std::unique_ptr<Groups>(std::move(world));
  });
}
