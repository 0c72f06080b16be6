#include "lockstep/launch/rank_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/base/text.h"

namespace lockstep::launch {

void Tail::add(std::string_view line) {
  if (lines_.size() == kLines) lines_.pop_front();
  lines_.emplace_back(line.substr(0, kLineLength));
  if (line.size() > kLineLength) lines_.back() += "...";
}

Result<std::unique_ptr<RankOutput>> RankOutput::open(Plan plan, Poller& poller, Console& console) {
  UniqueFd file;
  if (!plan.log_path.empty()) {
    file = UniqueFd(::open(plan.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!file) return Status::from_errno(cat("the log file ", plan.log_path, " cannot be made"), errno);
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status::from_errno("no pipe can be made for the output of a rank", errno);
  }
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  fcntl(reader.get(), F_SETFL, O_NONBLOCK);  // this end only: the rank's own end blocks, as programs expect
  std::unique_ptr<RankOutput> output(new RankOutput(std::move(plan), poller, console, std::move(reader),
                                                    std::move(writer), std::move(file)));
  LOCKSTEP_TRY(output->watch());
  return output;
}

RankOutput::RankOutput(Plan plan, Poller& poller, Console& console, UniqueFd reader, UniqueFd writer,
                       UniqueFd file)
    : plan_(std::move(plan)),
      poller_(poller),
      console_(console),
      reader_(std::move(reader)),
      writer_(std::move(writer)),
      file_(std::move(file)) {}

RankOutput::~RankOutput() {
  if (reader_) poller_.forget(reader_.get());
}

Status RankOutput::watch() {
  return poller_.watch(reader_.get(), Poller::Ready::kRead, [this] { read_some(); });
}

void RankOutput::set_paused(bool paused) {
  if (!reader_ || paused_ == paused) return;
  paused_ = paused;
  if (paused) {
    poller_.forget(reader_.get());
  } else if (!watch().ok()) {
    abandon();
  }
}

// Bounded, so that one rank that writes without end does not keep the others waiting.
void RankOutput::read_some() {
  std::array<char, 64U << 10> buffer;
  const ssize_t got = read(reader_.get(), buffer.data(), buffer.size());
  if (got > 0) {
    take({buffer.data(), static_cast<std::size_t>(got)});
  } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    finish();
  }
}

void RankOutput::read_available() {
  std::array<char, 64U << 10> buffer;
  for (int i = 0; reader_ && i < 64; ++i) {  // more than a pipe holds
    const ssize_t got = read(reader_.get(), buffer.data(), buffer.size());
    if (got <= 0) return;
    take({buffer.data(), static_cast<std::size_t>(got)});
  }
}

void RankOutput::abandon() {
  read_available();
  finish();
}

void RankOutput::take(std::string_view bytes) {
  write_log(bytes);
  lines_.feed(bytes, [this](std::string_view line) { show(line); });
}

void RankOutput::write_log(std::string_view bytes) {
  while (file_ && !bytes.empty()) {
    const ssize_t wrote = write(file_.get(), bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(wrote));
    } else if (errno != EINTR) {
      const Status error = Status::from_errno(cat(plan_.log_path, " cannot be written any more"), errno);
      console_.say(cat(error.message(), "; the job goes on without it"));
      file_.reset();
    }
  }
}

void RankOutput::show(std::string_view line) {
  if (plan_.shown) console_.line(plan_.stream, plan_.prefix, line);
  if (plan_.stream == Stream::kError) tail_.add(line);
}

void RankOutput::finish() {
  if (!reader_) return;
  lines_.finish([this](std::string_view line) { show(line); });
  poller_.forget(reader_.get());
  reader_.reset();
  file_.reset();
}

}  // namespace lockstep::launch
