// Ctrl-C while a thread waits inside the library.
//
// Python's own handler only notes a signal, and Python looks at the note between two instructions of the
// program: a call that waits would never hear of it. So a handler of ours goes before Python's, and notes the
// signal too. A thread looks at that note while an operation on the main thread takes long, and ends the
// operation's group, which no other way can be taken out of an operation. Then the call raises
// KeyboardInterrupt, or whatever the program's handler raises.
//
// Thread safety: any thread.
#pragma once

#include <functional>

namespace lockstep::python {

// While it lives, this thread may be interrupted: `stop` is called, once, from another thread, and must make
// what this thread waits for end. Costs two stores, and nothing on other threads than Python's main one.
class Interruptible {
 public:
  // `stop` is kept by reference.
  explicit Interruptible(const std::function<void()>& stop);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  const bool watched_;
};

// Raises what Python's handlers raise for the signals that have come; nothing if there is none, or on another
// thread than the main one. Takes the GIL.
void check_signals();

// While it lives this thread does not hold the GIL, if it did.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* const state_;
};

}  // namespace lockstep::python
