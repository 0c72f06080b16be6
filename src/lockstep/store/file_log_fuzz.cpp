// Reads the input as the file of a FileStore, as LogFile does. What is accepted must encode to the same
// bytes.
#include <algorithm>
#include <cstdint>

#include "lockstep/base/check.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/store/file_log.h"

namespace lockstep::store {
namespace {

void read_log(ByteView file) {
  if (file.size() < kLogHeaderSize) {
    is_torn_log_header(file);
    return;
  }
  const ByteView header = file.first(kLogHeaderSize);
  if (const auto identity = parse_log_header(header); identity.ok()) {
    const auto again = encode_log_header(*identity);
    LOCKSTEP_CHECK(std::equal(again.begin(), again.end(), header.begin()), "a header changed");
  }
  // The records are read behind a wrong header too, for the fuzzer's sake.
  KeyValues state(KeyValues::Limits{.max_bytes = 64U << 20});
  ByteView rest = file.subspan(kLogHeaderSize);
  while (!rest.empty()) {
    const ParsedRecord parsed = parse_record(rest);
    if (parsed.kind == ParsedRecord::Kind::kTorn) {
      LOCKSTEP_CHECK(parsed.size > rest.size(), "a torn record was whole");
    }
    if (parsed.kind != ParsedRecord::Kind::kWhole) return;
    Buffer again;
    LOCKSTEP_CHECK(encode_record(parsed.record, again).ok(), "a record is too large");
    LOCKSTEP_CHECK(
        std::equal(again.begin(), again.end(), rest.begin(), rest.begin() + std::ptrdiff_t(parsed.size)),
        "a record changed");
    if (!apply_record(parsed.record, state).ok()) return;
    rest = rest.subspan(parsed.size);
  }
}

// Takes the input for the body of a record whose checksums are right, which a fuzzer would hardly find.
void read_body(ByteView body) {
  Buffer file(kLogHeaderSize);
  base::ByteWriter writer(file);
  writer.integer(static_cast<std::uint32_t>(body.size()));
  writer.integer(base::crc32c(body));
  writer.integer(base::crc32c(ByteView(file).last(8)));
  writer.raw(body);
  read_log(file);
}

}  // namespace
}  // namespace lockstep::store

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const lockstep::ByteView input = std::as_bytes(std::span(data, size));
  lockstep::store::read_log(input);
  lockstep::store::read_body(input);
  return 0;
}
