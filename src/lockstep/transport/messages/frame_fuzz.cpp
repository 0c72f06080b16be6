// Reads the input as frames. Whatever is taken as one keeps to its limits and is written back as it was.
#include <algorithm>
#include <span>

#include "lockstep/base/check.h"
#include "lockstep/transport/messages/frame.h"
#include "lockstep/transport/messages/messenger.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::transport::messages;
  lockstep::ByteView input = std::as_bytes(std::span(data, size));
  while (!input.empty()) {
    const lockstep::ByteView bytes = input.first(std::min(kFrameSize, input.size()));
    input = input.subspan(bytes.size());
    const auto frame = parse_frame(bytes);
    if (!frame.ok()) {
      LOCKSTEP_CHECK(frame.status().code() == lockstep::Code::kDisconnected,
                     "what is no frame ends the connection");
      continue;
    }
    LOCKSTEP_CHECK(frame->size <= kMessageLimit && frame->room <= kMessageLimit, "a size keeps to its limit");
    LOCKSTEP_CHECK(frame->kind != FrameKind::kEager || frame->size <= kEagerLimit,
                   "an eager message keeps to its limit");
    lockstep::Buffer written;
    append_frame(written, *frame);
    LOCKSTEP_CHECK(std::ranges::equal(written, bytes), "a frame is written as it was read");
  }
  return 0;
}
