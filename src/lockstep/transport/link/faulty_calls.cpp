#include "lockstep/transport/link/faulty_calls.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::transport::link {
namespace {

// The first `most` bytes of a message.
class Front {
 public:
  Front(const msghdr& message, std::size_t most) : message_(message) {
    for (std::size_t i = 0; i < message.msg_iovlen && most > 0; ++i) {
      iovec piece = message.msg_iov[i];
      piece.iov_len = std::min(piece.iov_len, most);
      most -= piece.iov_len;
      pieces_.push_back(piece);
    }
    message_.msg_iov = pieces_.data();
    message_.msg_iovlen = pieces_.size();
  }

  msghdr& message() { return message_; }
  std::size_t size() const {
    std::size_t size = 0;
    for (const iovec& piece : pieces_) size += piece.iov_len;
    return size;
  }
  // Its bytes in one piece of its own, with the bit inverted.
  void damage(std::size_t bit) {
    copy_.clear();
    for (const iovec& piece : pieces_) {
      const auto* const data = static_cast<const std::byte*>(piece.iov_base);
      copy_.insert(copy_.end(), data, data + piece.iov_len);
    }
    copy_[bit / 8] ^= std::byte{1} << (bit % 8);
    pieces_ = {{.iov_base = copy_.data(), .iov_len = copy_.size()}};
    message_.msg_iov = pieces_.data();
    message_.msg_iovlen = 1;
  }

 private:
  msghdr message_;
  std::vector<iovec> pieces_;
  Buffer copy_;
};

ssize_t fails_with(int error) {
  errno = error;
  return -1;
}

}  // namespace

FaultyCalls::FaultyCalls(const LinkFaults& faults, const Clock& clock)
    : faults_(faults), clock_(clock), random_(faults.seed) {}

Duration FaultyCalls::draw(Duration most) {
  if (most <= Duration::zero()) return {};
  return Duration(std::uniform_int_distribution<Duration::rep>(0, most.count())(random_));
}

bool FaultyCalls::held(base::TimePoint& until) {
  if (faults_.jitter <= Duration::zero()) return false;
  const base::TimePoint now = clock_.now();
  if (now < until) return true;
  until = now + draw(faults_.jitter);
  return false;
}

void FaultyCalls::cut_off(int socket) {
  dead_ = socket;
  if (faults_.cut->how == LinkFaults::How::kEnd) {
    (void)::shutdown(socket, SHUT_WR);
    return;
  }
  // A connected socket that is told to connect to nobody resets its connection.
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  (void)::connect(socket, &nobody, sizeof(nobody));
}

ssize_t FaultyCalls::send(int socket, const msghdr& message) {
  if (dead_ == socket) return fails_with(ECONNRESET);
  if (held(out_quiet_until_)) return fails_with(EAGAIN);
  std::size_t most = faults_.most;
  const bool may_cut = faults_.cut && !dead_;
  if (may_cut) most = std::min<std::uint64_t>(most, faults_.cut->after - sent_);
  if (may_cut && most == 0) {
    cut_off(socket);
    return fails_with(ECONNRESET);
  }
  Front front(message, most);
  const std::uint64_t first_bit = sent_ * 8;
  if (faults_.flip && *faults_.flip >= first_bit && *faults_.flip < first_bit + front.size() * 8)
    front.damage(static_cast<std::size_t>(*faults_.flip - first_bit));
  const ssize_t sent = SocketCalls::kernel().send(socket, front.message());
  if (sent > 0) sent_ += static_cast<std::uint64_t>(sent);
  if (may_cut && sent_ == faults_.cut->after) cut_off(socket);
  return sent;
}

ssize_t FaultyCalls::recv(int socket, msghdr& message) {
  if (dead_ == socket && faults_.cut->how == LinkFaults::How::kReset) return fails_with(ECONNRESET);
  if (held(in_quiet_until_)) return fails_with(EAGAIN);
  Front front(message, faults_.most);
  return SocketCalls::kernel().recv(socket, front.message());
}

void FaultyCalls::connecting(Rank) { std::this_thread::sleep_for(draw(faults_.connect_jitter)); }

}  // namespace lockstep::transport::link
