// Feeds the input to the readers of plain and of sealed frames, in pieces of a size that the first byte
// gives. Frames that the input happens to hold come out of the plain reader as they are; nothing comes out of
// the sealed one; and what is written as frames, cut like this, comes out whole.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lockstep/base/check.h"
#include "lockstep/store/tcp_frame.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kLimit = 1U << 16;

// How many bytes of messages come out.
std::size_t read_in_pieces(FrameReader& reader, ByteView bytes, std::size_t piece, ByteSpan scratch) {
  std::size_t total = 0;
  while (!bytes.empty()) {
    const ByteSpan space = reader.space(scratch);
    const std::size_t count = std::min({piece, space.size(), bytes.size()});
    std::memcpy(space.data(), bytes.data(), count);
    reader.received(count);
    bytes = bytes.subspan(count);
    while (true) {
      const auto message = reader.next();
      if (!message.ok()) return total;
      if (!message->has_value()) break;
      total += (*message)->size();
    }
    reader.settle();
    LOCKSTEP_CHECK(reader.memory() <= 4 * (kLimit + 64), "a reader holds a frame at most");
  }
  return total;
}

void attack(ByteView input) {
  if (input.empty()) return;
  const std::size_t piece = 1 + static_cast<std::size_t>(input[0]);
  input = input.subspan(1);
  base::SealKey key;
  key.fill(std::byte{7});
  Buffer scratch(4096);

  FrameReader plain(FrameKey{}, kLimit);
  LOCKSTEP_CHECK(read_in_pieces(plain, input, piece, {}) <= input.size(), "messages are part of the input");
  FrameReader sealed(key, kLimit);
  LOCKSTEP_CHECK(read_in_pieces(sealed, input, piece, scratch) == 0, "a stranger's frame was believed");

  if (input.empty() || input.size() > kLimit) return;
  for (const FrameKey& frame_key : {FrameKey{}, FrameKey(key)}) {
    FrameWriter writer(frame_key);
    Buffer stream;
    for (int i = 0; i < 3; ++i) {
      writer.write(stream, [&](Buffer& out) { out.insert(out.end(), input.begin(), input.end()); });
    }
    FrameReader reader(frame_key, kLimit);
    LOCKSTEP_CHECK(read_in_pieces(reader, stream, piece, scratch) == 3 * input.size(), "a frame was lost");
  }
}

}  // namespace
}  // namespace lockstep::store

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::store::attack(std::as_bytes(std::span(data, size)));
  return 0;
}
