#include "lockstep/base/status_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::base;
  const Status status = parse_status(std::as_bytes(std::span(data, size)));
  if (status.ok()) __builtin_trap();
  if (status.failure() == Failure::kCorruptFrame) return 0;
  if (write_status(status).size() > kMaxStatusSize) __builtin_trap();
  return 0;
}
