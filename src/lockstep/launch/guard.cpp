#include "lockstep/launch/guard.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

enum class Order : int { kAddGroup, kRemoveGroup, kFolder };
// One atomic write on the pipe each.
struct Message {
  Order order = Order::kAddGroup;
  pid_t leader = 0;
  std::array<char, 512> folder = {};
};
static_assert(sizeof(Message) <= 4096);

void send(int pipe, const Message& message) {
  while (write(pipe, &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

bool receive(Message& message) {
  ssize_t got = 0;
  do {
    got = read(0, &message, sizeof(message));
  } while (got < 0 && errno == EINTR);
  return got == sizeof(message);
}

// The life of the guard. `pipe` is its only descriptor.
[[noreturn]] void keep_watch(int pipe) {
  setsid();  // the terminal's signals are the launcher's affair
  prctl(PR_SET_NAME, "lockstep-guard");
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
  dup2(pipe, 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, 1);
  dup2(null, 2);
  syscall(SYS_close_range, 3U, ~0U, 0U);

  std::set<pid_t> leaders;
  std::set<std::string> folders;
  Message message;
  while (receive(message)) {
    if (message.order == Order::kAddGroup) leaders.insert(message.leader);
    if (message.order == Order::kRemoveGroup) leaders.erase(message.leader);
    if (message.order == Order::kFolder) folders.insert(message.folder.data());
  }
  for (const pid_t leader : leaders) kill(-leader, SIGKILL);
  for (const std::string& folder : folders) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  _exit(0);
}

}  // namespace

Result<Guard> Guard::start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Status::from_errno("the launcher cannot make a pipe", errno);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return Status::from_errno("the launcher cannot start its guard process", errno);
  if (pid == 0) {
    writer.reset();
    keep_watch(reader.get());
  }
  return Guard(std::move(writer), pid);
}

Guard::~Guard() {
  if (!pipe_) return;  // moved from
  pipe_.reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::add_group(pid_t leader) const {
  send(pipe_.get(), {.order = Order::kAddGroup, .leader = leader});
}

void Guard::remove_group(pid_t leader) const {
  send(pipe_.get(), {.order = Order::kRemoveGroup, .leader = leader});
}

void Guard::add_folder(const std::string& path) const {
  Message message{.order = Order::kFolder};
  if (path.size() >= message.folder.size()) return;  // then it stays, which is only untidy
  std::memcpy(message.folder.data(), path.data(), path.size());
  send(pipe_.get(), message);
}

}  // namespace lockstep::launch
