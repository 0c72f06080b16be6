// Lets allocations fail: what links this library has an operator new that can.
//
// Thread safety: each thread has its own memory to run out of.
#pragma once

#include <functional>

namespace lockstep::testing {

// Runs `body`, in which the calling thread has no memory for its allocation number `fail_at`, from 0, and
// only for that. True if it needed that one. What it throws is passed on.
bool without_one_allocation(int fail_at, const std::function<void()>& body);
// The same with no memory for that one and all later ones. Destructors and handlers have none either.
bool without_memory_after(int fail_at, const std::function<void()>& body);

}  // namespace lockstep::testing
