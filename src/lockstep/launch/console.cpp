#include "lockstep/launch/console.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace lockstep::launch {
namespace {

constexpr std::size_t kCongestedAt = 1U << 20;

// A write of at most PIPE_BUF bytes does not block then.
bool takes_bytes(int fd) {
  pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

// The largest run of whole lines that fits into one atomic write; a longer line goes in pieces.
std::size_t next_write(std::string_view pending) {
  const std::string_view window = pending.substr(0, PIPE_BUF);
  const auto newline = window.rfind('\n');
  return newline == std::string_view::npos ? window.size() : newline + 1;
}

}  // namespace

Console::Console(const Options& options, Poller& poller)
    : poller_(poller), sinks_{Sink{.fd = options.out_fd}, Sink{.fd = options.error_fd}} {
  for (Sink& sink : sinks_) sink.coloured = options.colour_allowed && isatty(sink.fd) == 1;
}

Console::~Console() {
  for (const Sink& sink : sinks_) {
    if (sink.watched) poller_.forget(sink.fd);
  }
}

void Console::line(Stream stream, std::string_view prefix, std::string_view text) {
  Sink& sink = at(stream);
  if (sink.closed) return;
  sink.pending.append(prefix).append(text).append("\n");
}

void Console::block(Stream stream, std::string_view text) {
  Sink& sink = at(stream);
  if (sink.closed || text.empty()) return;
  sink.pending.append(text);
  if (text.back() != '\n') sink.pending += '\n';
}

void Console::flush() {
  for (Sink& sink : sinks_) flush(sink);
}

void Console::flush(Sink& sink) {
  std::size_t done = 0;
  while (done < sink.pending.size() && takes_bytes(sink.fd)) {
    const std::string_view rest = std::string_view(sink.pending).substr(done);
    const ssize_t wrote = write(sink.fd, rest.data(), next_write(rest));
    if (wrote >= 0) {
      done += static_cast<std::size_t>(wrote);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      sink.closed = true;  // nobody reads, or the disk is full: the job goes on without it
      done = sink.pending.size();
    }
  }
  sink.pending.erase(0, done);
  const bool wants = !sink.pending.empty();
  if (wants && !sink.watched) {
    sink.watched = poller_.watch(sink.fd, Poller::Ready::kWrite, [this] { flush(); }).ok();
  } else if (!wants && sink.watched) {
    poller_.forget(sink.fd);
    sink.watched = false;
  }
}

bool Console::congested() const {
  return std::any_of(sinks_.begin(), sinks_.end(),
                     [](const Sink& sink) { return sink.pending.size() > kCongestedAt; });
}

}  // namespace lockstep::launch
