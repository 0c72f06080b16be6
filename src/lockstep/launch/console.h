// The launcher's own stdout and stderr: whole lines, in the order they were given, without ever blocking.
//
// A line is queued and written when the descriptor takes it; a terminal that is paused, or a pipe that nobody
// reads, holds up the output but neither signals nor the watch over the ranks. Whoever feeds the console
// stops reading from its ranks while congested() is true, so memory is bounded and the ranks feel the
// back-pressure. A reader that goes away (`| head`) ends the output, not the job.
//
// Thread safety: one thread.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/launch/poller.h"

namespace lockstep::launch {

enum class Stream { kOut, kError };

class Console {
 public:
  struct Options {
    int out_fd = 1;
    int error_fd = 2;
    bool colour_allowed = true;  // false with NO_COLOR
  };
  // `poller` outlives the console.
  Console(const Options& options, Poller& poller);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // True if the stream is a terminal and colours are allowed.
  bool coloured(Stream stream) const { return at(stream).coloured; }
  void line(Stream stream, std::string_view prefix, std::string_view text);
  // "lockstep: text", to stderr.
  void say(std::string_view text) { line(Stream::kError, "lockstep: ", text); }
  // Several lines, as they are; the last one gets its newline if it has none.
  void block(Stream stream, std::string_view text);

  // Writes what the descriptors take now, and asks the poller to go on when they take more.
  void flush();
  bool congested() const;
  bool empty() const { return sinks_[0].pending.empty() && sinks_[1].pending.empty(); }

 private:
  struct Sink {
    int fd = -1;
    bool coloured = false;
    bool watched = false;
    bool closed = false;
    std::string pending = {};
  };
  Sink& at(Stream stream) { return sinks_[static_cast<std::size_t>(stream)]; }
  const Sink& at(Stream stream) const { return sinks_[static_cast<std::size_t>(stream)]; }
  void flush(Sink& sink);

  Poller& poller_;
  std::array<Sink, 2> sinks_;
};

}  // namespace lockstep::launch
