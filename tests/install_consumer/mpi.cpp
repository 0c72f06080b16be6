// Uses the installed component mpi. That this is rank 0 of 1 is refused before anything else is done.
#include <cstdio>

#include "lockstep/backend/mpi/mpi_world.h"

int main() {
  const auto world = lockstep::join_mpi({.world_size = lockstep::WorldSize{2}});
  std::printf("%s\n", world.status().text().c_str());
  return world.ok() ? 1 : 0;
}
