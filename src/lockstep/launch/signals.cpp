#include "lockstep/launch/signals.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

std::vector<int> default_signals() { return {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}; }

Result<std::vector<int>> parse_signals(std::string_view text) {
  if (text.empty()) return default_signals();
  std::vector<int> signals;
  for (const std::string& part : base::split(text, ',')) {
    const auto signal = base::parse_signal(base::trim(part));
    if (!signal) {
      return Status::invalid(cat("--signals ", base::quoted(text),
                                 " is not valid: give names with commas between them, as in TERM,INT"));
    }
    if (*signal == SIGKILL || *signal == SIGSTOP || *signal == SIGCHLD || *signal == SIGTSTP ||
        *signal == SIGCONT) {
      return Status::invalid(cat("--signals cannot have ", base::signal_name(*signal),
                                 ": it cannot be caught, or has a fixed meaning here"));
    }
    if (std::find(signals.begin(), signals.end(), *signal) == signals.end()) signals.push_back(*signal);
  }
  return signals;
}

bool ends_the_job(int signal) { return signal != SIGUSR1 && signal != SIGUSR2 && signal != SIGWINCH; }

Result<SignalChannel> SignalChannel::make(const std::vector<int>& forwarded) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  std::vector<int> wanted = forwarded;
  wanted.push_back(SIGTSTP);
  wanted.push_back(SIGCONT);
  for (const int signal : wanted) {
    if (!is_ignored(signal)) sigaddset(&mask, signal);
  }
  UniqueFd fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return Status::from_errno("the launcher cannot make a descriptor for signals", errno);
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  signal(SIGCHLD, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
  return SignalChannel(std::move(fd));
}

std::vector<int> SignalChannel::take() {
  std::vector<int> signals;
  signalfd_siginfo info{};
  for (;;) {
    const ssize_t got = read(fd_.get(), &info, sizeof(info));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(info)) return signals;
    signals.push_back(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace lockstep::launch
