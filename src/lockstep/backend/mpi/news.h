// What has ended a group: the first failure that this rank has met or heard of.
//
// The rank that meets one tells all others with a message; they hear it when they look. Each rank keeps the
// first one that it knows.
//
// Thread safety: any thread. look() is short.
#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>

#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/base/status_bytes.h"
#include "lockstep/base/types.h"

namespace lockstep::backend::mpi {

class News {
 public:
  // For messages with `tag`, which nothing else uses.
  News(MPI_Comm comm, int tag, Rank rank, int size);
  News(const News&) = delete;
  News& operator=(const News&) = delete;
  ~News();
  // Begins to listen. Before anything else.
  Status listen();

  // The failure that has ended the group; ok while it lives. Asks MPI.
  Status look();
  // The first one wins, is told to the others if it was met here, and returned.
  Status fail(const Status& why);
  // As fail(), but tells nobody.
  Status fail_here(const Status& why);
  // After this MPI is not asked any more.
  void stop_listening();
  // In a forked child: the request is the parent's.
  void forget();

 private:
  void hear() LOCKSTEP_REQUIRES(mutex_);

  const MPI_Comm comm_;
  const int tag_;
  const Rank rank_;
  const int size_;
  Mutex mutex_;
  MPI_Request request_ LOCKSTEP_GUARDED_BY(mutex_) = MPI_REQUEST_NULL;
  std::array<std::byte, base::kMaxStatusSize> heard_ LOCKSTEP_GUARDED_BY(mutex_);
  Status failure_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backend::mpi
