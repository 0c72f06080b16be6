// SIGINT, SIGTERM and SIGHUP as an event, so that a bench removes what it has made before it ends.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::bench {

class Interruption {
 public:
  // Blocks them, from here to the end of the process.
  static Result<Interruption> make();

  // Readable once one has come.
  int fd() const { return fd_.get(); }

 private:
  explicit Interruption(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace lockstep::bench
