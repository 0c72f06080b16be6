// How a thread of the library's own is started.
//
// All signals are blocked in it: the handlers of the program run on the program's own threads, and a broken
// pipe ends nobody. Where no thread can be had (a limit of processes or of memory) the error says so;
// std::thread alone would throw, and end a program that does not expect it.
#pragma once

#include <functional>
#include <thread>

#include "lockstep/base/status.h"

namespace lockstep::base {

// `name` is what ps and debuggers show: at most 15 characters.
Result<std::thread> start_thread(const char* name, std::function<void()> body);

// For a thread of the parent's, in a forked child: `thread` is none afterwards. Nothing is asked of the
// system, neither join nor detach: the child's own threads may have got the memory of the one that is not
// there.
void abandon(std::thread& thread) noexcept;

}  // namespace lockstep::base
