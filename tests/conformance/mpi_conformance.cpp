// A rank of the conformance suite on the mpi backend: mpirun starts it.
#include "lockstep/backend/mpi/mpi_world.h"
#include "lockstep/testing/backend_conformance.h"

int main(int argc, char** argv) {
  return lockstep::testing::run_backend_conformance(argc, argv, "mpi", [] { return lockstep::join_mpi(); });
}
