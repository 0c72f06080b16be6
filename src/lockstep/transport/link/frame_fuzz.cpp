#include <algorithm>

#include "lockstep/transport/link/errand.h"
#include "lockstep/transport/link/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  using namespace lockstep::transport::link;
  const ByteView bytes = std::as_bytes(std::span(data, size));
  Header header{};
  std::copy_n(bytes.begin(), std::min(size, header.size()), header.begin());
  // What is read is what was written: nothing but a frame parses.
  if (const auto frame = parse_header(header); frame.ok() && write_header(*frame) != header) __builtin_trap();
  std::array<std::byte, kErrandSize> errand{};
  std::copy_n(bytes.begin(), std::min(size, errand.size()), errand.begin());
  if (const auto parsed = parse_errand(errand); parsed.ok() && write_errand(*parsed) != errand)
    __builtin_trap();
  return 0;
}
