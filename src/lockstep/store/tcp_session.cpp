#include "lockstep/store/tcp_session.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/text.h"
#include "lockstep/store/logger.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kReadPerTurn = 64U << 10;
// With more than this unsent, no further request is taken.
constexpr std::size_t kUnsentBeforePause = 256U << 10;
constexpr std::size_t kKeptBuffer = 256U << 10;

// The socket of a local client is closed in favour of pipes, so its guard goes first.
Conduit take_conduit(Guest& guest) {
  const base::ForkLock until_it_is_guarded;
  guest.guard.reset();
  if (guest.keys) return Conduit(std::move(guest.socket));
  return Conduit::offer_pipes(std::move(guest.socket), guest.verdict);
}

}  // namespace

Session::Shared::Shared(std::size_t max_send_queue_bytes)
    : max_send_queue(max_send_queue_bytes), scratch(kReadPerTurn) {}

Session::Session(Shared& shared, ReadySet& ready_set, Tenant& tenant, Guest guest)
    : shared_(shared),
      ready_set_(ready_set),
      tenant_(tenant),
      peer_(std::move(guest.peer)),
      conduit_(take_conduit(guest)),
      reader_(guest.keys ? FrameKey(guest.keys->client_to_server) : FrameKey(), kMaxMessageSize),
      writer_(guest.keys ? FrameKey(guest.keys->server_to_client) : FrameKey()) {
  tenant_.connected();
  if (!ready_set_.add(conduit_, *this)) close_on_loop("the kernel cannot watch its connection");
}

Session::~Session() {
  ready_set_.remove(conduit_);
  tenant_.forget(*this);
  tenant_.discharge(charged_);
  tenant_.disconnected();
}

void Session::close_on_loop(std::string_view why) {
  if (!closed_) kLog.warn(cat("disconnected ", peer_.text, ": ", why));
  close_on_loop();
}

void Session::close_on_loop() {
  if (std::exchange(closed_, true)) return;
  shared_.closed.push_back(this);
  tenant_.execute_wills(*this);
  tenant_.forget(*this);
}

void Session::can_send_on_loop() {
  if (std::exchange(writing_, false)) flush_on_loop();
}

void Session::can_receive_on_loop() {
  if (closed_) return;
  try {
    read_on_loop();
    account();
    if (tenant_.over_memory()) {
      close_on_loop("the job's requests and answers under way have reached their memory limit");
    }
  } catch (const std::bad_alloc&) {
    close_on_loop("the store's process has no memory left for its requests");
  }
}

void Session::read_on_loop() {
  bool drained = false;
  for (std::size_t read = 0;;) {
    // The first time, what was left when it paused.
    paused_ = !handle_frames_on_loop();
    reader_.settle();
    if (closed_ || paused_ || (drained && !ended_)) return;
    if (read >= kReadPerTurn) return ready_set_.rearm_receiving(conduit_, *this);
    const ByteSpan free = reader_.space(shared_.scratch);
    const ByteSpan space = free.first(std::min(free.size(), kReadPerTurn));
    const ssize_t count = conduit_.receive(space);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return close_on_loop();  // the client has gone, which is its right
    read += static_cast<std::size_t>(count);
    reader_.received(static_cast<std::size_t>(count));
    drained = static_cast<std::size_t>(count) < space.size();
  }
}

bool Session::handle_frames_on_loop() {
  while (!closed_ && unsent() <= kUnsentBeforePause) {
    auto message = reader_.next();
    if (!message.ok()) {
      close_on_loop(message.status().message());
      return false;
    }
    if (!message->has_value()) return true;
    const Status parsed = parse_request(**message, request_);
    if (!parsed.ok()) {
      close_on_loop(parsed.message());
      return false;
    }
    tenant_.execute(request_, *this);
  }
  return false;
}

void Session::flush_on_loop() {
  in_unsent_ = false;
  if (closed_) return;
  if (!overflow_.empty()) return close_on_loop(overflow_);
  while (unsent() > 0) {
    const ssize_t count = conduit_.send(ByteView(out_).subspan(sent_));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      if (!std::exchange(writing_, true)) ready_set_.arm_sending(conduit_, *this);
      break;
    }
    if (count < 0) return close_on_loop();
    sent_ += static_cast<std::size_t>(count);
  }
  if (unsent() == 0) {
    out_.clear();
    sent_ = 0;
    if (out_.capacity() > kKeptBuffer) Buffer().swap(out_);
  }
  account();
  if (!paused_ || unsent() > kUnsentBeforePause) return;
  can_receive_on_loop();
}

void Session::account() {
  const std::size_t holds = reader_.memory() + out_.capacity();
  if (holds == charged_) return;
  tenant_.charge(holds);
  tenant_.discharge(std::exchange(charged_, holds));
}

// Only notes that there is too much: the tenant, which is giving the answer, is not called back.
template <typename Fill>
void Session::answer(Fill&& fill) {
  if (closed_ || !overflow_.empty()) return;
  // The part that is sent does not come along when the buffer grows.
  if (sent_ > kKeptBuffer) {
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(sent_));
    sent_ = 0;
  }
  writer_.write(out_, std::forward<Fill>(fill));
  if (!std::exchange(in_unsent_, true)) shared_.unsent.push_back(this);
  account();
  if (unsent() > shared_.max_send_queue) {
    overflow_ = cat("it does not read its answers; ", Bytes(unsent()), " of them are waiting");
  } else if (tenant_.over_memory()) {
    overflow_ = "the job's requests and answers under way have reached their memory limit";
  }
}

void Session::done(std::uint64_t id) {
  answer([&](Buffer& out) { write_done(id, out); });
}
void Session::value(std::uint64_t id, ByteView value) {
  answer([&](Buffer& out) { write_value(id, value, out); });
}
void Session::number(std::uint64_t id, std::int64_t number) {
  answer([&](Buffer& out) { write_number(id, number, out); });
}
void Session::flag(std::uint64_t id, bool flag) {
  answer([&](Buffer& out) { write_flag(id, flag, out); });
}
void Session::list(std::uint64_t id, std::span<const ByteView> items) {
  answer([&](Buffer& out) {
    write_list_head(id, static_cast<std::uint32_t>(items.size()), out);
    for (const ByteView item : items) write_list_item(item, out);
  });
}
void Session::error(std::uint64_t id, const Status& status) {
  answer([&](Buffer& out) { write_error(id, status, out); });
}

}  // namespace lockstep::store
