// Runs a small program to its end and gives what it printed: for asking other tools what they are.
//
// The program gets no input and the caller's environment; stdout and stderr come back together. At the
// deadline it and the processes it made are killed. Nothing is left running and nobody waits for a grandchild
// that keeps the pipe open. Thread safety: any thread. Does not: use a shell.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"

namespace lockstep::launch {

struct ProgramOutput {
  int wait_status = 0;  // as from waitpid(2)
  std::string text;     // at most `limit` bytes; the rest is read and dropped

  bool succeeded() const;
  // Trimmed; empty if there is none.
  std::string first_line() const;
};

// `arguments` starts with the program, which is looked for in PATH. kUnsupported if there is no such program,
// kTimeout at the deadline.
Result<ProgramOutput> run_program(const std::vector<std::string>& arguments, const Deadline& deadline,
                                  Bytes limit = Bytes::kib(64));

}  // namespace lockstep::launch
