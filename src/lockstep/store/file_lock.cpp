#include "lockstep/store/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace lockstep::store {
namespace {

// Locks of the open file description, which also work between hosts. -1 with EINVAL where a file system does
// not know them.
int set_description_lock(int fd, short type) {
  struct flock whole = {};
  whole.l_type = type;
  whole.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &whole);
}

bool is_busy(int error) { return error == EAGAIN || error == EACCES || error == EWOULDBLOCK; }

}  // namespace

Result<bool> try_lock_file(int fd, LockKind kind) {
  const bool exclusive = kind == LockKind::kExclusive;
  int result = 0;
  do result = set_description_lock(fd, exclusive ? F_WRLCK : F_RDLCK);
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EINVAL) {
    do result = ::flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB);
    while (result != 0 && errno == EINTR);
  }
  if (result == 0) return true;
  if (is_busy(errno)) return false;
  if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) {
    return Status::unsupported("this file system has no file locks; choose a folder on another one");
  }
  return Status::from_errno("the file cannot be locked", errno);
}

void unlock_file(int fd) {
  if (set_description_lock(fd, F_UNLCK) != 0) ::flock(fd, LOCK_UN);
}

}  // namespace lockstep::store
