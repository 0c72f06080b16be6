#include "lockstep/store/tcp_session.h"

#include <sys/socket.h>

#include <cerrno>
#include <new>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

constexpr Logger kLog("store");
constexpr std::size_t kReadPerTurn = 64U << 10;
// With more than this unsent, no further request is taken.
constexpr std::size_t kUnsentBeforePause = 256U << 10;
constexpr std::size_t kKeptBuffer = 256U << 10;

}  // namespace

void Outbound::flush_on_loop() {
  // Flushing may add again: a session that can read on handles what it has received.
  while (!sessions_.empty()) {
    const std::vector<std::shared_ptr<Session>> turn = std::exchange(sessions_, {});
    for (const auto& session : turn) session->flush_on_loop();
  }
}

Session::Session(const Context& context, Tenant& tenant, Guest guest)
    : context_(context),
      tenant_(tenant),
      peer_(std::move(guest.peer)),
      socket_(context.loop, guest.socket.get()),
      fork_guard_(guest.socket.get()),
      reader_(guest.keys.client_to_server, kMaxMessageSize),
      writer_(guest.keys.server_to_client) {
  static_cast<void>(guest.socket.release());  // socket_ owns it now
  tenant_.connected();
  context_.sessions.insert(this);
}

Session::~Session() {
  context_.sessions.erase(this);
  tenant_.forget(*this);
  tenant_.discharge(charged_);
  tenant_.disconnected();
}

void Session::close_on_loop(std::string_view why) {
  if (!closed_) kLog.warn(cat("store: disconnected ", peer_.text, ": ", why));
  close_on_loop();
}

void Session::close_on_loop() {
  if (std::exchange(closed_, true)) return;
  tenant_.forget(*this);
  asio::error_code ignored;
  socket_.close(ignored);
}

void Session::wait_to_read_on_loop() {
  if (reading_ || closed_) return;
  reading_ = true;
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const asio::error_code& error) {
                       self->reading_ = false;
                       if (error || self->closed_) return;
                       self->read_on_loop();
                       self->context_.outbound.flush_on_loop();
                       self->context_.after_turn();
                     });
}

void Session::wait_to_write_on_loop() {
  if (writing_ || closed_) return;
  writing_ = true;
  socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                     [self = shared_from_this()](const asio::error_code& error) {
                       self->writing_ = false;
                       if (error || self->closed_) return;
                       self->flush_on_loop();
                       self->context_.outbound.flush_on_loop();
                       self->context_.after_turn();
                     });
}

void Session::read_on_loop() {
  try {
    for (std::size_t read = 0; read < kReadPerTurn && !closed_;) {
      const ByteSpan space = reader_.space();
      const ssize_t count = recv(socket_.native_handle(), space.data(), space.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count <= 0) return close_on_loop();  // the client has gone, which is its right
      read += static_cast<std::size_t>(count);
      reader_.received(static_cast<std::size_t>(count));
      if (!handle_frames_on_loop()) return;
      if (static_cast<std::size_t>(count) < space.size()) break;
    }
    account();
    if (tenant_.over_memory()) {
      return close_on_loop("the job's requests and answers under way have reached their memory limit");
    }
  } catch (const std::bad_alloc&) {
    return close_on_loop("the store's process has no memory left for its requests");
  }
  wait_to_read_on_loop();
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
  return false;  // flush_on_loop() goes on once enough is sent
}

void Session::flush_on_loop() {
  in_outbound_ = false;
  if (!overflow_.empty()) return close_on_loop(overflow_);
  while (unsent() > 0 && !closed_) {
    const ssize_t count =
        send(socket_.native_handle(), out_.data() + sent_, unsent(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      wait_to_write_on_loop();
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
  // Paused because too much was unsent: requests that are here already come first.
  if (!reading_ && !closed_ && unsent() <= kUnsentBeforePause && handle_frames_on_loop()) {
    wait_to_read_on_loop();
  }
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
  if (!std::exchange(in_outbound_, true)) context_.outbound.add(shared_from_this());
  account();
  if (unsent() > context_.max_send_queue) {
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
