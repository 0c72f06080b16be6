// Feeds the input to both readers of records, in portions that the input chooses, and to the parsers behind
// them. Nothing may crash or hold more memory than a few records take, and no sealed record may come out.
#include <algorithm>
#include <cstring>

#include "lockstep/base/check.h"
#include "lockstep/transport/introduction.h"
#include "lockstep/transport/tcp/record.h"

namespace lockstep::transport::tcp {
namespace {

// How many records came out.
int read_all(RecordReader& reader, ByteView input, std::size_t portion) {
  int records = 0;
  while (true) {
    const auto record = reader.next();
    if (!record.ok()) {
      LOCKSTEP_CHECK(record.status().code() == Code::kDisconnected, "damage is an end of the connection");
      return records;
    }
    if (record->has_value()) {
      ++records;
      LOCKSTEP_CHECK((*record)->payload.size() <= kMaxPayload, "a record keeps to its limit");
      continue;
    }
    if (input.empty()) return records;
    const ByteSpan space = reader.space();
    LOCKSTEP_CHECK(!space.empty() && space.size() <= (1U << 20), "a reader has room, and not too much");
    const std::size_t count = std::min({portion, space.size(), input.size()});
    std::memcpy(space.data(), input.data(), count);
    reader.received(count);
    input = input.subspan(count);
  }
}

}  // namespace
}  // namespace lockstep::transport::tcp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::transport;
  if (size == 0) return 0;
  static const lockstep::base::SealKey kKey = [] {
    lockstep::base::SealKey key;
    lockstep::base::random_bytes(key);
    return key;
  }();
  const std::size_t portion = 1 + data[0];
  const lockstep::ByteView input = std::as_bytes(std::span(data, size)).subspan(1);
  LOCKSTEP_CHECK(tcp::read_all(*tcp::sealed_reader(kKey), input, portion) == 0,
                 "a stranger's record was opened");
  tcp::read_all(*tcp::checked_reader(1), input, portion);
  static_cast<void>(tcp::parse_record(input).ok());
  static_cast<void>(parse_introduction(input).ok());
  return 0;
}
