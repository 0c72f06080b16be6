#include "lockstep/backend/mpi/news.h"

#include <cstring>

#include "lockstep/backend/mpi/transfer.h"

namespace lockstep::backend::mpi {

News::News(MPI_Comm comm, int tag, Rank rank, int size) : comm_(comm), tag_(tag), rank_(rank), size_(size) {}

News::~News() { stop_listening(); }

Status News::listen() {
  const MutexLock lock(mutex_);
  return status_of(MPI_Irecv(heard_.data(), static_cast<int>(heard_.size()), MPI_BYTE, MPI_ANY_SOURCE, tag_,
                             comm_, &request_),
                   "MPI_Irecv");
}

void News::hear() {
  if (request_ == MPI_REQUEST_NULL) return;
  int came = 0;
  MPI_Status status;
  if (MPI_Test(&request_, &came, &status) != MPI_SUCCESS || came == 0) return;
  int size = 0;
  MPI_Get_count(&status, MPI_BYTE, &size);
  if (failure_.ok() && size >= 0)
    failure_ = base::parse_status({heard_.data(), static_cast<std::size_t>(size)});
}

Status News::look() {
  const MutexLock lock(mutex_);
  if (failure_.ok()) hear();
  return failure_;
}

Status News::fail_here(const Status& why) {
  const MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = why;
  return failure_;
}

Status News::fail(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (failure_.ok()) hear();
    if (!failure_.ok()) return failure_;
    failure_ = why;
  }
  const Buffer bytes = base::write_status(why);
  const auto told = std::make_shared<Transfer>(nullptr);
  const ByteView copy(told->readable(bytes), bytes.size());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_.value) (void)told->send(copy, peer, tag_, comm_);
  }
  // Small messages leave at once; one that does not is kept until it has.
  if (const auto complete = told->test(); !complete.ok() || !*complete) abandon(told);
  return why;
}

void News::stop_listening() {
  const MutexLock lock(mutex_);
  if (request_ == MPI_REQUEST_NULL) return;
  MPI_Cancel(&request_);
  MPI_Wait(&request_, MPI_STATUS_IGNORE);  // a receive that was cancelled ends at once
}

void News::forget() {
  const MutexLock lock(mutex_);
  request_ = MPI_REQUEST_NULL;
}

}  // namespace lockstep::backend::mpi
