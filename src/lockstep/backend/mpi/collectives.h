// Collectives as calls of MPI: what begins them.
//
//   barrier         MPI_Ibarrier
//   broadcast       MPI_Ibcast, for each buffer
//   all_reduce      MPI_Iallreduce, for each buffer
//   reduce          MPI_Ireduce, for each buffer
//   all_gather      MPI_Iallgatherv, for each buffer; beyond 2 GiB, messages from each rank to each
//   reduce_scatter  MPI_Ireduce_scatter, for each buffer; beyond 2 GiB, MPI_Ireduce to each rank
//   gather, scatter, all_to_all
//                   messages from rank to rank, which is how MPI does the uneven ones; each buffer is one, so
//                   that none is packed and sizes that do not agree are noticed
//
// Pieces of 1 GiB at most, all under way at once.
#pragma once

#include <mpi.h>

#include "lockstep/backend/mpi/transfer.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/collective/call.h"

namespace lockstep::backend::mpi {

// Where an operation runs.
struct Place {
  MPI_Comm collectives = MPI_COMM_NULL;  // nothing else uses its collectives
  MPI_Comm messages = MPI_COMM_NULL;     // for messages with `tag`, which nothing else uses
  int tag = 0;
  Rank rank = {};
  int size = 1;
};

// `call` was checked; its lists of buffers live as long as the transfer. What is to be done afterwards is the
// transfer's to do. After an error some of it may be under way.
Status begin(const Call& call, const Place& place, Transfer& transfer);

}  // namespace lockstep::backend::mpi
