// The MPI library of this process, which has one state for all worlds: when it begins and ends, what it
// allows, and what it was given and never gave back.
//
// Thread safety: any thread.
#pragma once

#include <mpi.h>

#include <memory>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::backend::mpi {

// Initialises MPI, unless that was done, and has it finalised when the process exits; what the program has
// initialised is the program's to finalise. kUnsupported if threads are not allowed, kInvalid after the end.
Status start_library();

// What `call` (such as "MPI_Ibarrier") has returned, with MPI's own words for it. ok for MPI_SUCCESS.
Status status_of(int result, std::string_view call);

// The largest tag of a message; at least 32767.
int largest_tag();

// Something that MPI uses and does not give back in time.
class Abandoned {
 public:
  virtual ~Abandoned() = default;
  // Whether MPI has given it back now.
  virtual bool given_back() = 0;
};
// Keeps it until then; for ever, if need be. While MPI holds something it cannot be finalised.
void abandon(std::shared_ptr<Abandoned> what);

}  // namespace lockstep::backend::mpi
