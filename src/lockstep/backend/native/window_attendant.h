// The thread that serves a window to the members on other hosts, who ask for its bytes by message.
//
// Thread safety: has_left() from any thread; the rest from the window's owner.
// Grammar of the requests: docs/wire/windows.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"

namespace lockstep::backend {

struct WindowRequest {
  enum Kind : std::uint64_t { kPut = 1, kGet = 2, kLeave = 3 };
  std::uint64_t kind = 0;
  std::uint64_t number = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

// Of messages. Requests and signals have one tag each; what belongs to a request has two made from its
// number.
constexpr std::uint64_t kWindowRequestTag = 2;
constexpr std::uint64_t kWindowSignalTag = 3;
constexpr std::uint64_t payload_tag(std::uint64_t number) { return 4 * number; }
constexpr std::uint64_t reply_tag(std::uint64_t number) { return 4 * number + 1; }

// For receives that wait for whatever comes.
constexpr Duration kForLong = std::chrono::hours(24 * 365);

// The bytes of one value.
template <typename T>
ByteView view_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
ByteSpan span_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// That this rank will ask and answer nothing any more, by message to `to`.
WorkPtr send_goodbye(Backend& group, Rank to);

class WindowAttendant {
 public:
  // Serves `own`. The group outlives it.
  static Result<std::unique_ptr<WindowAttendant>> start(Backend& group, ByteSpan own, const Clock& clock);
  // Waits until none of the bytes are used any more. In a forked child it leaves everything as it is.
  ~WindowAttendant();
  WindowAttendant(const WindowAttendant&) = delete;
  WindowAttendant& operator=(const WindowAttendant&) = delete;

  // Whether a member of another host has said goodbye.
  bool has_left(Rank rank) const { return left_[static_cast<std::size_t>(rank.value)].load(); }

 private:
  WindowAttendant(Backend& group, ByteSpan own, const Clock& clock);
  void attend();
  void answer(Rank from, const WindowRequest& request);

  Backend& group_;
  const ByteSpan own_;
  const Clock& clock_;
  const std::uint64_t fork_generation_;
  std::vector<std::atomic<bool>> left_;  // by rank
  std::thread thread_;
};

}  // namespace lockstep::backend
