#include "lockstep/collective/packed.h"

#include <cstring>

namespace lockstep::collective {
namespace {

constexpr std::size_t kSmall = std::size_t{64} << 10;      // of one buffer
constexpr std::size_t kTogether = std::size_t{256} << 10;  // of those that are packed

// How many of the first buffers fit together, and their bytes.
struct Run {
  std::size_t buffers = 0;
  std::size_t bytes = 0;
};
Run first_run(std::span<const ByteSpan> buffers) {
  Run run;
  for (const ByteSpan buffer : buffers) {
    if (buffer.size() > kSmall || run.bytes + buffer.size() > kTogether) break;
    run.bytes += buffer.size();
    ++run.buffers;
  }
  return run;
}

Status operate_together(std::span<const ByteSpan> buffers, std::size_t bytes,
                        const std::function<Status(ByteSpan)>& operate) {
  Buffer together(bytes);
  std::size_t at = 0;
  for (const ByteSpan buffer : buffers) {
    if (!buffer.empty()) std::memcpy(together.data() + at, buffer.data(), buffer.size());
    at += buffer.size();
  }
  LOCKSTEP_TRY(operate(together));
  at = 0;
  for (const ByteSpan buffer : buffers) {
    if (!buffer.empty()) std::memcpy(buffer.data(), together.data() + at, buffer.size());
    at += buffer.size();
  }
  return {};
}

}  // namespace

Status for_each_packed(std::span<const ByteSpan> buffers, const std::function<Status(ByteSpan)>& operate) {
  while (!buffers.empty()) {
    const Run run = first_run(buffers);
    if (run.buffers > 1) {
      LOCKSTEP_TRY(operate_together(buffers.first(run.buffers), run.bytes, operate));
      buffers = buffers.subspan(run.buffers);
    } else {
      LOCKSTEP_TRY(operate(buffers.front()));
      buffers = buffers.subspan(1);
    }
  }
  return {};
}

}  // namespace lockstep::collective
