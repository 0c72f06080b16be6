// A helper process that answers one line with one line: one side of a benchmark.
//
// Thread safety: none. The destructor ends the helper's stdin, at which it exits, and waits for it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::bench {

class PeerProcess {
 public:
  static Result<PeerProcess> start(const std::filesystem::path& program);
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&&) = delete;
  ~PeerProcess();

  // kDisconnected with how the helper ended if it has ended; what it wrote to stderr is on ours.
  Result<std::string> ask(const std::string& command, const Deadline& deadline);

 private:
  PeerProcess(std::string name, pid_t pid, base::UniqueFd in, base::UniqueFd out);

  const std::string name_;
  pid_t pid_ = -1;
  base::UniqueFd in_;   // its stdin
  base::UniqueFd out_;  // its stdout
  std::string received_;
};

}  // namespace lockstep::bench
