// The faults that a rank injects into itself, by name.
//
//   sudden, after the delay and beside the step that runs:  kill exit abort segv throw stop hoard
//   sudden, of the group:      say (abort() with a message)
//   instead of the step:       sleep (until a line comes on stdin)  leave  skip
//   before the step:           fork  second_join  too_much  no_memory  no_descriptors  no_threads
//   in the step itself:        other_op other_count other_dtype same_size_dtype other_reduce_op other_root
//   from the start:            signals  no_memfd  few_descriptors  few_threads  slow
//   from the start, between hosts:   links   (spoilt_links.h)
//   scenes of their own:       destroy  opposite_order  flip  attack   (scenes.h)
#pragma once

#include <chrono>
#include <functional>
#include <string_view>
#include <thread>

#include "lockstep/backend/backend.h"
#include "lockstep/base/environment.h"
#include "plan.h"
#include "steps.h"

namespace lockstep::chaos {

// Does something once, later, on a thread of its own.
class Alarm {
 public:
  Alarm() = default;
  ~Alarm() { wait(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  void set(std::chrono::microseconds delay, std::function<void()> action);
  // Until it has done what it was set to do.
  void wait();

 private:
  std::thread thread_;
};

// True for the faults that an Alarm can do.
bool is_sudden(std::string_view fault);
// Reports the injection, then does it. Most do not return.
void inject_sudden(std::string_view fault);
// The message that everybody must hear.
Status what_is_said(Rank rank);

// What holds for this process from its start.
Status prepare(const Plan& plan);

// Before its step. An error is one that the fault must not cause.
Status inject_before(const Plan& plan, const Environment& environment, World& world);
// Undoes what inject_before() has limited, so that the rank can report.
void lift_limits();

// What all ranks do in the step of a mismatch, and what its victims do instead.
Step step_to_disagree_on(const Plan& plan, Step step);
Step disagree(const Plan& plan, Step step, WorldSize size);

// Until the driver says something.
void wait_for_a_word();
// Whether it has come.
bool has_a_word();

}  // namespace lockstep::chaos
