// Feeds the input to the parsers of answers, as a server could.
#include <cstddef>
#include <cstdint>

#include "lockstep/base/check.h"
#include "lockstep/store/tcp_wire.h"

namespace lockstep::store {
namespace {

void attack(ByteView input) {
  Response response;
  if (!parse_response(input, response).ok()) return;
  if (!response.status.ok()) {
    Buffer written;
    write_error(response.id, response.status, written);
    LOCKSTEP_CHECK(std::equal(written.begin(), written.end(), input.begin(), input.end()),
                   "an error is written as it was read");
    return;
  }
  static_cast<void>(parse_number(response.body));
  static_cast<void>(parse_flag(response.body));
  if (const auto items = parse_list(response.body); items.ok()) {
    std::size_t size = 4;
    for (const ByteView item : *items) size += 4 + item.size();
    LOCKSTEP_CHECK(size == response.body.size(), "a list is its items and nothing else");
  }
}

}  // namespace
}  // namespace lockstep::store

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::store::attack(std::as_bytes(std::span(data, size)));
  return 0;
}
