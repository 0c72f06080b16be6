#include "lockstep/transport/tcp/record.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"
#include "lockstep/store/tcp_frame.h"

namespace lockstep::transport::tcp {
namespace {

constexpr std::size_t kLengthSize = 4;
constexpr std::size_t kChecksumSize = 4;

// What a reader finds wrong, as an error of the connection with the record's number.
Status broken(const Status& why, std::uint64_t number) {
  return Status::disconnected(cat("record ", number, " is damaged: ", why.message()),
                              {.failure = why.failure(), .sequence = number});
}

Status corrupt(std::string what) {
  return Status::disconnected(std::move(what), {.failure = Failure::kCorruptFrame});
}

class SealedWriter final : public RecordWriter {
 public:
  explicit SealedWriter(const base::SealKey& key) : frames_(key) {}
  void write(Buffer& out, RecordKind kind, ByteView payload) override {
    frames_.write(out, [&](Buffer& body) {
      base::ByteWriter writer(body);
      writer.integer(static_cast<std::uint8_t>(kind));
      writer.raw(payload);
    });
  }

 private:
  store::FrameWriter frames_;
};

class SealedReader final : public RecordReader {
 public:
  explicit SealedReader(const base::SealKey& key) : frames_(key, kMaxRecordBody) {}
  ByteSpan space() override { return frames_.space(); }
  void received(std::size_t count) override { frames_.received(count); }
  Result<std::optional<Record>> next() override {
    const auto body = frames_.next();
    if (!body.ok()) return broken(body.status(), number_);
    if (!body->has_value()) return std::optional<Record>();
    const auto record = parse_record(**body);
    if (!record.ok()) return broken(record.status(), number_);
    ++number_;
    return std::optional<Record>(*record);
  }

 private:
  store::FrameReader frames_;
  std::uint64_t number_ = 0;
};

// Over the record's number too, so that one that is repeated, dropped or reordered is noticed.
std::uint32_t checksum(std::uint64_t number, ByteView length_and_body) {
  std::array<std::byte, sizeof(number)> raw;
  std::memcpy(raw.data(), &number, sizeof(number));
  return base::crc32c(length_and_body, base::crc32c(raw));
}

class CheckedWriter final : public RecordWriter {
 public:
  explicit CheckedWriter(std::uint64_t first) : number_(first) {}
  void write(Buffer& out, RecordKind kind, ByteView payload) override {
    const std::size_t start = out.size();
    const std::size_t size = kLengthSize + 1 + payload.size();
    // All the memory first: then nothing fails half way.
    const std::size_t needed = start + size + kChecksumSize;
    if (out.capacity() < needed) out.reserve(std::max(needed, 2 * out.capacity()));
    base::ByteWriter writer(out);
    writer.integer(static_cast<std::uint32_t>(1 + payload.size()));
    writer.integer(static_cast<std::uint8_t>(kind));
    writer.raw(payload);
    writer.integer(checksum(number_++, ByteView(out).subspan(start, size)));
  }

 private:
  std::uint64_t number_;
};

class CheckedReader final : public RecordReader {
 public:
  explicit CheckedReader(std::uint64_t first) : number_(first) {}

  ByteSpan space() override {
    if (buffer_.empty()) buffer_.resize(2 * (kLengthSize + kMaxRecordBody + kChecksumSize));
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    // Never empty: what is left here is less than one record, and there is room for two.
    return ByteSpan(buffer_).subspan(end_);
  }
  void received(std::size_t count) override { end_ += count; }

  Result<std::optional<Record>> next() override {
    const ByteView in = ByteView(buffer_).subspan(begin_, end_ - begin_);
    if (in.size() < kLengthSize) return std::optional<Record>();
    std::uint32_t length = 0;
    std::memcpy(&length, in.data(), sizeof(length));
    if (length == 0 || length > kMaxRecordBody) {
      return broken(
          Status::invalid(cat("it announces ", length, " bytes; 1 to ", kMaxRecordBody, " are allowed"),
                          {.failure = Failure::kLimitExceeded}),
          number_);
    }
    const std::size_t covered = kLengthSize + length;
    if (in.size() < covered + kChecksumSize) return std::optional<Record>();
    std::uint32_t expected = 0;
    std::memcpy(&expected, in.data() + covered, sizeof(expected));
    if (checksum(number_, in.first(covered)) != expected) {
      return broken(corrupt("its checksum is wrong"), number_);
    }
    const auto record = parse_record(in.subspan(kLengthSize, length));
    if (!record.ok()) return broken(record.status(), number_);
    begin_ += covered + kChecksumSize;
    ++number_;
    return std::optional<Record>(*record);
  }

 private:
  std::uint64_t number_;
  Buffer buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace

Result<Record> parse_record(ByteView body) {
  if (body.empty()) return corrupt("it is empty");
  const auto kind = static_cast<RecordKind>(body.front());
  const ByteView payload = body.subspan(1);
  switch (kind) {
    case RecordKind::kIntroduction:
      if (payload.size() == kIntroductionSize) return Record{kind, payload};
      break;
    case RecordKind::kData:
      if (!payload.empty() && payload.size() <= kMaxPayload) return Record{kind, payload};
      break;
    case RecordKind::kGoodbye:
      if (payload.empty()) return Record{kind, payload};
      break;
  }
  return corrupt(cat("there is no record of kind ", static_cast<int>(body.front()), " with a payload of ",
                     payload.size(), " bytes"));
}

std::unique_ptr<RecordWriter> sealed_writer(const base::SealKey& key) {
  return std::make_unique<SealedWriter>(key);
}
std::unique_ptr<RecordReader> sealed_reader(const base::SealKey& key) {
  return std::make_unique<SealedReader>(key);
}
std::unique_ptr<RecordWriter> checked_writer(std::uint64_t first) {
  return std::make_unique<CheckedWriter>(first);
}
std::unique_ptr<RecordReader> checked_reader(std::uint64_t first) {
  return std::make_unique<CheckedReader>(first);
}

}  // namespace lockstep::transport::tcp
