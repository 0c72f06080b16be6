// Cuts a stream of bytes into the lines that a console shows.
//
// A line ends with a newline. Of a line with carriage returns (a progress bar) the last state is shown, as a
// terminal would leave it. A line longer than the limit is shown in pieces, each a line of its own, cut
// between UTF-8 characters; an unfinished progress bar shows its last state at each sixteenth of the limit.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep::launch {

constexpr std::size_t kMaxLine = 64U << 10;

class LineAssembler {
 public:
  using Emit = std::function<void(std::string_view line)>;

  explicit LineAssembler(std::size_t limit = kMaxLine) : limit_(limit) {}

  // Calls `emit` for each line that is now whole, without its newline.
  void feed(std::string_view bytes, const Emit& emit);
  // The stream has ended: what has no newline yet is a line too.
  void finish(const Emit& emit);

 private:
  bool too_long() const;
  void emit_piece(const Emit& emit);

  const std::size_t limit_;
  std::string pending_;
};

}  // namespace lockstep::launch
