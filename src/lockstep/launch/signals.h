// Signals as events: the launcher blocks what it cares about and reads it from a descriptor.
//
// Thread safety: make a SignalChannel on the main thread before any other thread is started, so that all of
// them inherit its mask.
#pragma once

#include <csignal>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::launch {

// INT, TERM, HUP and QUIT, which also end the job; USR1 and USR2, which do not.
std::vector<int> default_signals();
// "TERM,USR1"; empty gives the default. kInvalid for a name that is unknown or that cannot be caught.
Result<std::vector<int>> parse_signals(std::string_view text);
// USR1, USR2 and WINCH are passed on and nothing else happens; any other of them ends the job.
bool ends_the_job(int signal);

class SignalChannel {
 public:
  // Blocks SIGCHLD, SIGTSTP, SIGCONT and `forwarded`, but none that was ignored when the process started
  // (nohup), and ignores SIGPIPE. SIGCHLD is never left ignored: nobody would hear how a child has ended.
  // That stays so after its destruction: it is for a process that ends with its job, and a signal that comes
  // too late must not change how it ends.
  static Result<SignalChannel> make(const std::vector<int>& forwarded);

  int fd() const { return fd_.get(); }
  // What has come since the last call; never waits.
  std::vector<int> take();

 private:
  explicit SignalChannel(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace lockstep::launch
