// What every rank that `lockstep bench` starts has: its connection to the command, clocks, and a way to give
// up.
//
// The command tells a rank over a socket what to measure. The first argument of the rank is the socket's
// path. The rank says
//   rank RANK VERSION
// and then answers each line with one. Between commands it sleeps in read(2); at the end of the stream it
// exits.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::bench {

[[noreturn]] inline void give_up(const std::string& what) {
  std::cerr << "lockstep bench: " << what << std::endl;
  std::_Exit(1);
}

inline std::int64_t nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The connection to the command.
class CommandLink {
 public:
  explicit CommandLink(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) give_up("the path of the socket is too long");
    std::memcpy(address.sun_path, path.data(), path.size());
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      give_up("cannot reach the command: " + std::string(std::strerror(errno)));
    }
  }
  CommandLink(const CommandLink&) = delete;
  CommandLink& operator=(const CommandLink&) = delete;
  ~CommandLink() { close(fd_); }

  // Nothing at the end of the stream.
  std::optional<std::string> read_line() {
    std::size_t end = 0;
    while ((end = received_.find('\n')) == std::string::npos) {
      char bytes[4096];
      const ssize_t count = read(fd_, bytes, sizeof(bytes));
      if (count == 0) return std::nullopt;
      if (count > 0) received_.append(bytes, static_cast<std::size_t>(count));
    }
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }

  void write_line(std::string line) {
    line += '\n';
    for (std::size_t sent = 0; sent < line.size();) {
      const ssize_t count = send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno != EINTR) std::_Exit(0);  // the command is gone
      if (count > 0) sent += static_cast<std::size_t>(count);
    }
  }

 private:
  int fd_;
  std::string received_;
};

// A Peer is made from the arguments and has hello() and answer(command).
template <typename Peer>
int answer_commands(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) give_up("this program is started by the command");
  CommandLink link(arguments.front());
  Peer peer(arguments);
  link.write_line(peer.hello());
  while (const auto command = link.read_line()) link.write_line(peer.answer(*command));
  return 0;
}

}  // namespace lockstep::bench
