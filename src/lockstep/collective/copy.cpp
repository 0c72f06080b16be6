#include "lockstep/collective/copy.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace lockstep::collective {

void copy_for_peers(ByteSpan to, const std::byte* from, CopyWay way) {
  // Four of these fill a line, which leaves the core as a whole; wider vectors are no faster.
  constexpr std::size_t kVector = sizeof(__m128i);
  std::size_t done = 0;
  if (way == CopyWay::kPastCache) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(to.data()) % kVector;
    done = std::min(to.size(), past == 0 ? 0 : kVector - past);
    if (done > 0) std::memcpy(to.data(), from, done);
    for (; done + kVector <= to.size(); done += kVector) {
      const __m128i vector = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to.data() + done), vector);
    }
    _mm_sfence();
  }
  if (done < to.size()) std::memcpy(to.data() + done, from + done, to.size() - done);
}

}  // namespace lockstep::collective
