#include "lockstep/launch/memory_sharing.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>

#include "lockstep/base/descriptor_passing.h"
#include "lockstep/base/text.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::launch {
namespace {

// The segment has two pages: the parent writes the first and reads the second, the child the other way round.
constexpr std::size_t kPage = 4096;
constexpr std::size_t kSize = 2 * kPage;
constexpr std::byte kFromParent{0x5a};
constexpr std::byte kFromChild{0xa5};

// The child's exit status says how far it came.
enum class TrialStep : int { kDone, kConnect, kReceive, kMap, kRead, kAnswer };

const char* step_text(int step) {
  switch (static_cast<TrialStep>(step)) {
    case TrialStep::kDone:
      return "ended";
    case TrialStep::kConnect:
      return "could not connect to an abstract unix socket";
    case TrialStep::kReceive:
      return "received no descriptor";
    case TrialStep::kMap:
      return "could not map the memory it was given";
    case TrialStep::kRead:
      return "did not see what the other process wrote";
    case TrialStep::kAnswer:
      return "could not answer";
  }
  return "ended in an unexpected way";
}

class Mapping {
 public:
  explicit Mapping(int fd) : at_(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (ok()) ::munmap(at_, kSize);
  }
  bool ok() const { return at_ != MAP_FAILED; }
  std::span<std::byte> page(std::size_t index) const {
    return {static_cast<std::byte*>(at_) + index * kPage, kPage};
  }

 private:
  void* at_;
};

bool holds(std::span<const std::byte> page, std::byte value) {
  return std::all_of(page.begin(), page.end(), [value](std::byte b) { return b == value; });
}

// Runs in the forked child: system calls only, no allocation.
TrialStep child_part(const sockaddr_un& address, socklen_t size) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) return TrialStep::kConnect;
  std::byte byte{};
  UniqueFd segment;
  if (base::receive_descriptors(socket, {&byte, 1}, {&segment, 1}) != 1 || !segment)
    return TrialStep::kReceive;
  const Mapping mapping(segment.get());
  if (!mapping.ok()) return TrialStep::kMap;
  if (!holds(mapping.page(0), kFromParent)) return TrialStep::kRead;
  std::memset(mapping.page(1).data(), static_cast<int>(kFromChild), kPage);
  const std::byte done{1};
  return ::send(socket, &done, 1, MSG_NOSIGNAL) == 1 ? TrialStep::kDone : TrialStep::kAnswer;
}

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) end();
  }
  pid_t pid() const { return pid_; }
  // Kills it if it still runs. What the child came to.
  const char* end() {
    ::kill(pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? step_text(WEXITSTATUS(status)) : "did nothing in time";
  }

 private:
  pid_t pid_;
};

Result<UniqueFd> make_segment() {
  UniqueFd segment(::memfd_create("lockstep-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment) return Status::from_errno("memfd_create failed", errno);
  if (::ftruncate(segment.get(), kSize) != 0) return Status::from_errno("the memfd cannot be sized", errno);
  if (::fallocate(segment.get(), 0, 0, kSize) != 0) {
    return Status::from_errno("fallocate on a memfd failed", errno);
  }
  if (::fcntl(segment.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status::from_errno("the memfd cannot be sealed", errno);
  }
  return segment;
}

bool wait_readable(int fd, const Deadline& deadline) {
  pollfd wait{fd, POLLIN, 0};
  while (!deadline.expired()) {
    if (::poll(&wait, 1, deadline.poll_millis()) > 0) return true;
  }
  return false;
}

}  // namespace

Result<Duration> prove_memory_sharing(const Deadline& deadline) {
  LOCKSTEP_ASSIGN(const UniqueFd segment, make_segment());
  const Mapping mapping(segment.get());
  if (!mapping.ok()) return Status::from_errno("the memfd cannot be mapped", errno);
  std::memset(mapping.page(0).data(), static_cast<int>(kFromParent), kPage);

  // Bound with the family alone, the kernel picks a free abstract name.
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t size = sizeof(address);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Status::from_errno("cannot listen on an abstract unix socket", errno);
  }

  const pid_t pid = ::fork();
  if (pid < 0) return Status::from_errno("cannot fork", errno);
  if (pid == 0) ::_exit(static_cast<int>(child_part(address, size)));
  Child child(pid);

  if (!wait_readable(listener.get(), deadline)) {
    return Status::timeout(cat("the second process ", child.end()));
  }
  const base::TimePoint start = deadline.clock().now();
  const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ucred peer{};
  socklen_t peer_size = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) != 0 ||
      peer.pid != child.pid()) {
    return Status::unsupported(
        "the kernel does not say who is at the other end of a unix socket (SO_PEERCRED)");
  }
  const std::byte byte{1};
  const int passed = segment.get();
  if (base::send_descriptors(socket.get(), {&byte, 1}, {&passed, 1}) != 1) {
    return Status::from_errno("cannot pass a descriptor over a unix socket", errno);
  }
  std::byte done{};
  if (!wait_readable(socket.get(), deadline) || ::recv(socket.get(), &done, 1, 0) != 1) {
    return Status::unsupported(cat("the second process ", child.end()));
  }
  if (!holds(mapping.page(1), kFromChild)) {
    return Status::unsupported("this process does not see what the second one wrote");
  }
  return deadline.clock().now() - start;
}

}  // namespace lockstep::launch
