// While one lives this thread runs a completion callback: what it would start or wait for may need this very
// thread.
//
// Thread safety: each thread has its own.
#pragma once

namespace lockstep::backend {

class CallbackScope {
 public:
  // `owner`: whose thread it is.
  explicit CallbackScope(const void* owner) : before_(current()) { current() = owner; }
  ~CallbackScope() { current() = before_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  static bool is_here() { return current() != nullptr; }
  static bool is_of(const void* owner) { return current() == owner; }

 private:
  static const void*& current() {
    alignas(8) static thread_local const void* owner = nullptr;
    return owner;
  }

  const void* const before_;
};

}  // namespace lockstep::backend
