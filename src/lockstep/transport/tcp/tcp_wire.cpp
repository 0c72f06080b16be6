#include "lockstep/transport/tcp/tcp_wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::transport::tcp {
namespace {

// Records are made while less than this waits to be sent.
constexpr std::size_t kEnoughUnsent = 256U << 10;
constexpr std::size_t kKeptBuffer = 512U << 10;
constexpr Duration kLinger = std::chrono::seconds(1);

Status no_memory(std::string_view what) {
  return Status::internal(cat("there is no memory left ", what), {.failure = Failure::kNoMemory});
}

}  // namespace

void Lingering::end_on_loop() {
  while (!wires_.empty()) (*wires_.begin())->cut_on_loop();
}

TcpWire::TcpWire(Loop& loop, Lingering& lingering, std::unique_ptr<Socket> socket, const Keys& keys)
    : lingering_(lingering),
      socket_(std::move(socket)),
      linger_timer_(loop),
      clock_(loop.clock()),
      reader_(sealed_reader(keys.recv)),
      writer_(sealed_writer(keys.send)) {}

void TcpWire::wait_to_read_on_loop() {
  socket_->when_readable_on_loop([self = shared_from_this()] {
    if (self->state_ == State::kLingering) return self->linger_on_loop();
    if (const auto wake = self->wake_) wake();  // a copy: it may be replaced meanwhile
  });
}

void TcpWire::wait_to_write_on_loop() {
  socket_->when_writable_on_loop([self = shared_from_this()] {
    if (self->state_ == State::kLingering) return self->linger_on_loop();
    if (const auto wake = self->wake_) wake();  // a copy: it may be replaced meanwhile
  });
}

Result<std::optional<Introduction>> TcpWire::introduce_on_loop(const Introduction& own) {
  if (state_ == State::kFresh) {
    state_ = State::kIntroducing;
    writer_->write(out_, RecordKind::kIntroduction, introduction_bytes(own));
    if (own.protection == Protection::kIntegrity) writer_ = checked_writer(1);
  }
  LOCKSTEP_TRY(flush_on_loop().status());
  while (introduction_ < kSealedIntroductionSize) {
    // Not a byte more: what follows may be protected in another way.
    const ByteSpan space = reader_->space();
    const auto count =
        socket_->recv_on_loop(space.first(std::min(space.size(), kSealedIntroductionSize - introduction_)));
    if (!count.ok()) return count.status();
    if (*count == 0) {
      wait_to_read_on_loop();
      return std::optional<Introduction>();
    }
    reader_->received(*count);
    introduction_ += *count;
  }
  LOCKSTEP_ASSIGN(const auto record, reader_->next());
  if (!record || record->kind != RecordKind::kIntroduction) {
    return Status::disconnected("its first record is not its introduction",
                                {.failure = Failure::kCorruptFrame});
  }
  LOCKSTEP_ASSIGN(const Introduction other, parse_introduction(record->payload));
  if (other.protection == Protection::kIntegrity) reader_ = checked_reader(1);
  state_ = State::kOpen;
  return std::optional<Introduction>(other);
}

Result<std::size_t> TcpWire::write_on_loop(ByteView bytes) {
  std::size_t taken = 0;
  try {
    while (taken < bytes.size() && unsent() < kEnoughUnsent) {
      const ByteView payload = bytes.subspan(taken, std::min(bytes.size() - taken, kMaxPayload));
      writer_->write(out_, RecordKind::kData, payload);
      taken += payload.size();
    }
  } catch (const std::bad_alloc&) {
    return no_memory("for bytes to be sent");
  }
  return taken;
}

Result<std::uint64_t> TcpWire::flush_on_loop() {
  while (unsent() > 0) {
    const auto count = socket_->send_on_loop(ByteView(out_).subspan(sent_));
    if (!count.ok()) return count.status();
    if (*count == 0) {
      wait_to_write_on_loop();
      // The part that is sent does not come along when the buffer grows.
      if (sent_ >= kEnoughUnsent) {
        out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(std::exchange(sent_, 0)));
      }
      return flushed_;
    }
    sent_ += *count;
    flushed_ += *count;
  }
  out_.clear();
  sent_ = 0;
  if (out_.capacity() > kKeptBuffer) Buffer().swap(out_);
  return flushed_;
}

Result<std::size_t> TcpWire::read_on_loop(ByteSpan bytes) {
  std::size_t filled = 0;
  try {
    while (filled < bytes.size()) {
      if (payload_.empty()) {
        if (goodbye_) {
          if (filled > 0) return filled;
          return Status::disconnected("the peer closed the connection", {.failure = Failure::kClosed});
        }
        LOCKSTEP_ASSIGN(const auto record, reader_->next());
        if (record && record->kind == RecordKind::kIntroduction) {
          return Status::disconnected("it introduced itself twice", {.failure = Failure::kCorruptFrame});
        }
        if (record) {
          payload_ = record->payload;
          goodbye_ = record->kind == RecordKind::kGoodbye;
          continue;
        }
        const ByteSpan space = reader_->space();
        const auto count = socket_->recv_on_loop(space);
        if (!count.ok()) return filled > 0 ? Result<std::size_t>(filled) : count.status();
        if (*count == 0) {
          wait_to_read_on_loop();
          return filled;
        }
        reader_->received(*count);
        continue;
      }
      const std::size_t count = std::min(bytes.size() - filled, payload_.size());
      std::memcpy(bytes.data() + filled, payload_.data(), count);
      payload_ = payload_.subspan(count);
      filled += count;
    }
  } catch (const std::bad_alloc&) {
    return no_memory("for bytes to be received");
  }
  return filled;
}

void TcpWire::close_on_loop() {
  if (state_ == State::kLingering || state_ == State::kClosed) return;
  wake_ = nullptr;
  if (state_ != State::kOpen) return cut_on_loop();
  try {
    writer_->write(out_, RecordKind::kGoodbye, {});
  } catch (const std::bad_alloc&) {
    return cut_on_loop();
  }
  state_ = State::kLingering;
  lingering_.add(shared_from_this());
  linger_timer_.arm_on_loop(clock_.now() + kLinger, [this] { cut_on_loop(); });
  linger_on_loop();
}

// Sends the rest, says that there is no more, and reads what still comes until the peer has closed too.
void TcpWire::linger_on_loop() {
  const auto flushed = flush_on_loop();
  if (!flushed.ok()) return cut_on_loop();
  if (unsent() == 0) socket_->shutdown_send_on_loop();
  std::array<std::byte, 4096> ignored;
  for (int i = 0; i < 64; ++i) {
    const auto count = socket_->recv_on_loop(ignored);
    if (!count.ok()) return cut_on_loop();
    if (*count == 0) break;
  }
  wait_to_read_on_loop();
}

void TcpWire::cut_on_loop() {
  const auto self = shared_from_this();
  state_ = State::kClosed;
  wake_ = nullptr;
  linger_timer_.disarm_on_loop();
  socket_->close_on_loop();
  ticket_.reset();
  lingering_.remove(self);
}

}  // namespace lockstep::transport::tcp
