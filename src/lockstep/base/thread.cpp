#include "lockstep/base/thread.h"

#include <pthread.h>

#include <csignal>
#include <memory>
#include <system_error>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::base {
namespace {

// All signals, for the calling thread; a thread starts with the mask of the one that starts it.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

Result<std::thread> start_thread(const char* name, std::function<void()> body) {
  const BlockedSignals blocked;
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    // Not as its errno says it, which is that of a wait that has ended.
    return Status::internal(
        cat("the thread ", name,
            " cannot be started, because the limit of processes (ulimit -u) or of memory is reached: ",
            error.code().message()),
        {.failure = Failure::kNoMemory});
  }
}

// The old one is never destroyed, which would end the program.
void abandon(std::thread& thread) noexcept { std::construct_at(&thread); }

}  // namespace lockstep::base
