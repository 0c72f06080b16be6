// join_mpi(): the ranks of a job that MPI has started, and groups of them over MPI's own communication. For
// clusters where MPI owns the fabric.
//
//   auto world = lockstep::join_mpi();                  // mpirun -n 4 ./program
//   lockstep::Backend& all = (*world)->group();
//
// Rank and size are MPI's. MPI must allow calls from any thread (MPI_THREAD_MULTIPLE); a program that
// initialises MPI itself asks for that, and ends MPI itself, after its groups are gone. Otherwise MPI is
// initialised here and ended when the process exits, because it can be initialised only once.
//
// A Backend made here keeps the contract of backend.h, with these differences, which are MPI's:
// - No order of a reduction is promised: sums of floats may differ in their last bits from run to run and
//   between sizes, though all ranks get the same. 16-bit floats travel as float32 and are rounded once.
// - MPI cannot stop a collective. After a timeout or an abort the group is dead, as with every backend, and
//   what MPI still uses is kept for ever: the `keep` of the operation, or, for bytes that came without one,
//   the copy that MPI was given instead. So bytes with a `keep` travel without a copy.
// - Failures travel as messages: a rank hears of an abort or timeout of another in its next operation, or in
//   one that it waits for. MPI does not say who is late (monitored_barrier() does), and a rank that dies is
//   MPI's business: mpirun ends the whole job.
// - Who leaves a group says nothing to the others: they wait until their deadline.
// - Messages: tags above MPI's limit are kInvalid. A message of another size is kInvalid on the receiver, and
//   unnoticed by the sender. A receive whose deadline passes is withdrawn; a send cannot be.
// - Messages make progress while some thread of the process is in an operation or waits for a work, and, for
//   one with a callback, always.
// - Destroying the last group's world does not wait; the end of the process does, for all ranks (that is
//   MPI's rule), unless an operation is under way for ever.
//
// Thread safety, lifetime and forked children: as Groups.
// Does not: shrink a world, or allocate memory that other ranks can reach.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/backend/groups.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::backend {

struct MpiOptions {
  // Behaviour.
  Duration timeout = kDefaultOpTimeout;  // of an operation
  // How long ranks wait for each other when the world or a group is made.
  Duration join_timeout = std::chrono::minutes(5);
  // What the caller takes this rank and the world's size to be: kInvalid if MPI says otherwise, which happens
  // when a program is started by something else than mpirun.
  std::optional<Rank> rank = {};
  std::optional<WorldSize> world_size = {};
  // Performance.
  CompareCalls compare_calls = CompareCalls::kAlways;  // the same on all ranks
};

// Called by all ranks. kUnsupported if MPI does not allow threads; kInvalid if MPI has ended already, or
// disagrees with the options; kTimeout if a rank does not come.
Result<std::unique_ptr<Groups>> join_mpi(const MpiOptions& options = {});

}  // namespace lockstep::backend

namespace lockstep {
using backend::join_mpi;
using backend::MpiOptions;
}  // namespace lockstep
