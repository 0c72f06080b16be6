#include "lockstep/collective/copy.h"

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

namespace lockstep::collective {

void copy_for_peers(ByteSpan to, const std::byte* from, CopyWay way) {
  // Four of these fill a line, which leaves the core as a whole; wider vectors are no faster.
  constexpr std::size_t kVector = sizeof(__m128i);
  const bool aligned = reinterpret_cast<std::uintptr_t>(to.data()) % kVector == 0;
  std::size_t done = 0;
  if (aligned && way == CopyWay::kPastCache) {
    for (; done + kVector <= to.size(); done += kVector) {
      const __m128i vector = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to.data() + done), vector);
    }
    _mm_sfence();
  }
  if (done < to.size()) std::memcpy(to.data() + done, from + done, to.size() - done);
}

}  // namespace lockstep::collective
