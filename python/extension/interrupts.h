// Ctrl-C while a thread waits inside the library.
//
// Python's own handler only notes a signal, and Python looks at the note between two instructions of the
// program: a call that waits would never hear of it. So a handler of ours goes before Python's, and notes the
// signal too. A thread looks at that note while an operation on the main thread takes long, and ends the
// operation's group, which no other way can be taken out of an operation. Then the call raises
// KeyboardInterrupt. A handler of the program's own may raise nothing, and only note that the program shall
// end: it runs when the operation has ended by itself. A second signal in the same operation ends that all
// the same.
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace lockstep::python {

class Watch;

// While it lives, this thread may be interrupted: `stop` is called, once, from another thread, and must make
// what this thread waits for end. Costs two stores, and nothing on other threads than Python's main one.
class Interruptible {
 public:
  // `stop` is kept by reference. Throws what Python's handlers raise for a signal that came before: Python
  // looks between two of its instructions alone, and may have looked before it came. One that Python has
  // handled is over.
  explicit Interruptible(const std::function<void()>& stop);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  Watch* watch_;  // nothing: it is not watched
};

// Raises what Python's handlers raise for the signals that have come; nothing if there is none, or on another
// thread than the main one. Takes the GIL.
void check_signals();

// Gives what `body` gives, which may wait and cannot be stopped. On Python's main thread it runs on a thread
// of its own, and a signal ends this call meanwhile, by what Python's handlers raise: the thread is then left
// to itself, so `body` must own what it uses. The GIL is not held.
void wait_aside(std::function<void()> body);
template <typename Body>
auto run_aside(Body body) -> decltype(body()) {
  const auto given = std::make_shared<std::optional<decltype(body())>>();  // shared with the thread
  wait_aside([given, body = std::move(body)] { given->emplace(body()); });
  return *std::move(*given);
}

// While it lives this thread does not hold the GIL, if it did. What waits is in its scope, also where torch
// has let go of the GIL: once the interpreter ends, a thread does not leave it. It would ask for the GIL,
// there or in torch, and Python would end it, which ends the process.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* const state_;
};

// From now on no thread but this leaves a WithoutGil.
void stop_other_threads();

}  // namespace lockstep::python
