#include "tools/bench/interruption.h"

#include <pthread.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>

namespace lockstep::bench {

Result<Interruption> Interruption::make() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&mask, signal);
  UniqueFd fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return Status::from_errno("no descriptor for signals can be made", errno);
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  return Interruption(std::move(fd));
}

}  // namespace lockstep::bench
