#include "lockstep/backend/native/watch_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/transport/lost.h"

namespace lockstep::backend {
namespace {

constexpr std::uint32_t kMagic = 0x42574b4c;  // "LKWB"
constexpr std::size_t kChecked = kWatchMessageSize - 4;
// The kernel counts from the first repetition: a beat after the last one that was heard, and 200 ms after
// that.
constexpr Duration kBeforeItCounts = std::chrono::milliseconds(300);

}  // namespace

std::array<std::byte, kWatchMessageSize> write_watch_message(const WatchMessage& message) {
  Buffer bytes;
  base::ByteWriter out(bytes);
  out.integer(kMagic);
  out.integer(static_cast<std::uint8_t>(message.kind));
  out.integer(static_cast<std::uint8_t>(message.failure));
  out.integer(std::uint16_t{0});
  out.integer(static_cast<std::int32_t>(message.rank.value));
  out.integer(base::crc32c(bytes));
  std::array<std::byte, kWatchMessageSize> raw{};
  std::copy(bytes.begin(), bytes.end(), raw.begin());
  return raw;
}

Result<WatchMessage> parse_watch_message(std::span<const std::byte, kWatchMessageSize> bytes) {
  base::ByteReader in(bytes);
  const auto magic = in.integer<std::uint32_t>();
  const auto kind = in.integer<std::uint8_t>();
  const auto failure = static_cast<Failure>(in.integer<std::uint8_t>());
  const auto reserved = in.integer<std::uint16_t>();
  const Rank rank(in.integer<std::int32_t>());
  const auto crc = in.integer<std::uint32_t>();
  const bool is_lost = kind == static_cast<std::uint8_t>(WatchMessage::Kind::kLost);
  const bool known = is_lost ? failure == Failure::kPeerDied || failure == Failure::kPeerStalled ||
                                   failure == Failure::kPeerUnreachable
                             : failure == Failure::kNone &&
                                   (kind == static_cast<std::uint8_t>(WatchMessage::Kind::kBeat) ||
                                    kind == static_cast<std::uint8_t>(WatchMessage::Kind::kGoodbye) ||
                                    kind == static_cast<std::uint8_t>(WatchMessage::Kind::kLeft));
  if (magic != kMagic || reserved != 0 || !known || crc != base::crc32c(bytes.first<kChecked>()))
    return Status::disconnected("a watch message arrived damaged", {.failure = Failure::kCorruptFrame});
  return WatchMessage{.kind = static_cast<WatchMessage::Kind>(kind), .failure = failure, .rank = rank};
}

WatchSocket::WatchSocket(UniqueFd socket, Rank peer, Duration limit)
    : socket_(std::move(socket)), fork_guard_(socket_.get()), peer_(peer) {
  // A wire that is cut one way still carries what the other side sends again and again: whether it hears us
  // is known by what it acknowledges.
  const Duration counted = std::max(limit / 2, limit - kBeforeItCounts);
  const auto millis = static_cast<unsigned>(
      std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::milliseconds>(counted).count()));
  (void)::setsockopt(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &millis, sizeof(millis));
}

void WatchSocket::say(const WatchMessage& message) {
  const auto bytes = write_watch_message(message);
  while (::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    // The socket tells it once: afterwards its end looks like that of a process that has died.
    if (errno == ETIMEDOUT) error_ = errno;
    break;
  }
}

std::vector<WatchMessage> WatchSocket::say_goodbye(const Deadline& deadline) {
  say({.kind = WatchMessage::Kind::kGoodbye});
  (void)::shutdown(socket_.get(), SHUT_WR);
  std::vector<WatchMessage> heard;
  while (true) {
    const auto messages = listen();
    if (!messages.ok()) break;
    heard.insert(heard.end(), messages->begin(), messages->end());
    if (deadline.expired()) break;
    pollfd ended{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&ended, 1, deadline.poll_millis());
  }
  return heard;
}

Result<std::vector<WatchMessage>> WatchSocket::listen() {
  std::vector<WatchMessage> messages;
  while (true) {
    const ssize_t got = ::recv(socket_.get(), in_.data() + received_, in_.size() - received_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return messages;
    if (got <= 0) {
      // What came before the end counts.
      if (!messages.empty()) return messages;
      return transport::connection_lost(got == 0 ? error_ : errno);
    }
    received_ += static_cast<std::size_t>(got);
    if (received_ < in_.size()) continue;
    received_ = 0;
    LOCKSTEP_ASSIGN(messages.emplace_back(), parse_watch_message(in_));
    has_spoken_ = true;
  }
}

}  // namespace lockstep::backend
