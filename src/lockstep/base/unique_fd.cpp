#include "lockstep/base/unique_fd.h"

#include <unistd.h>

namespace lockstep::base {

void UniqueFd::reset(int fd) {
  // Linux frees the descriptor also when close(2) says EINTR: never repeat it.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace lockstep::base
