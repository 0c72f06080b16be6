// Records and verdicts from a store that anyone may have written to: what parses can be written again.
#include "lockstep/store/member.h"

#include <cstddef>
#include <cstdint>

#include "lockstep/base/check.h"
#include "lockstep/base/handshake.h"

namespace store = lockstep::store;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const lockstep::ByteView bytes = std::as_bytes(std::span(data, size));
  if (const auto record = store::parse_member(bytes);
      record.ok() && record->version == lockstep::base::kWireVersion) {
    const auto again = store::parse_member(store::write_member(*record));
    LOCKSTEP_CHECK(again.ok() && *again == *record, "a record comes back");
  }
  const auto verdict = store::parse_verdict(bytes);
  if (!verdict.ok()) return 0;
  if (const auto* members = std::get_if<store::Members>(&*verdict)) {
    const auto again = store::parse_verdict(store::write_verdict(*members));
    LOCKSTEP_CHECK(again.ok() && std::get<store::Members>(*again) == *members, "a table comes back");
  }
  if (const auto* failure = std::get_if<lockstep::Status>(&*verdict)) {
    const auto again = store::parse_verdict(store::write_verdict(*failure));
    LOCKSTEP_CHECK(again.ok() && std::get<lockstep::Status>(*again).text() == failure->text(),
                   "a failure comes back");
  }
  return 0;
}
