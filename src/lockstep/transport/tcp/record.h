// The records that a TCP connection's stream of bytes is cut into. Grammar: docs/wire/connection.md.
//
// Thread safety: each belongs to one direction of one connection and to one thread at a time.
// A length is checked before anything is made of it; memory is made for bytes that have come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crypto.h"
#include "lockstep/base/status.h"
#include "lockstep/transport/introduction.h"

namespace lockstep::transport::tcp {

enum class RecordKind : std::uint8_t {
  kIntroduction = 1,  // the first record of each direction, always sealed
  kData = 2,
  kGoodbye = 3,  // the last one: whoever sends it closes on purpose
};

constexpr std::size_t kMaxPayload = 64U << 10;
// The kind, then the payload.
constexpr std::size_t kMaxRecordBody = 1 + kMaxPayload;

struct Record {
  RecordKind kind;
  ByteView payload;
};
// A body with the kind and payload that the grammar allows. kCorruptFrame otherwise.
Result<Record> parse_record(ByteView body);

class RecordWriter {
 public:
  virtual ~RecordWriter() = default;
  // Appends one record. If there is no memory for it (std::bad_alloc), `out` is as before.
  virtual void write(Buffer& out, RecordKind kind, ByteView payload) = 0;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // Where the next received bytes go; never empty. Views given out by next() end here.
  virtual ByteSpan space() = 0;
  virtual void received(std::size_t count) = 0;
  // The next record; nothing while it is incomplete. An error (kDisconnected with kCorruptFrame or
  // kLimitExceeded, and the record's number) is final. To be asked until it gives nothing before space() is.
  virtual Result<std::optional<Record>> next() = 0;
};

std::unique_ptr<RecordWriter> sealed_writer(const base::SealKey& key);
std::unique_ptr<RecordReader> sealed_reader(const base::SealKey& key);
// For Protection::kIntegrity; `first` is the number of the first record.
std::unique_ptr<RecordWriter> checked_writer(std::uint64_t first);
std::unique_ptr<RecordReader> checked_reader(std::uint64_t first);

// The size of a sealed introduction, with everything around it.
constexpr std::size_t kSealedIntroductionSize = 4 + 1 + kIntroductionSize + base::kSealTagSize;

}  // namespace lockstep::transport::tcp
