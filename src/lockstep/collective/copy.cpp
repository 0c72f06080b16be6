#include "lockstep/collective/copy.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

namespace lockstep::collective {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

}  // namespace

void copy_for_peers(ByteSpan to, const std::byte* from) {
  // The vectors of the least processor that the build is for: wider ones are no faster here.
  const hn::ScalableTag<std::uint8_t> tag;
  const std::size_t lanes = hn::Lanes(tag);
  const bool aligned = reinterpret_cast<std::uintptr_t>(to.data()) % lanes == 0;
  std::size_t done = 0;
  if (aligned && to.size() >= kStreamFrom) {
    auto* const out = reinterpret_cast<std::uint8_t*>(to.data());
    const auto* const in = reinterpret_cast<const std::uint8_t*>(from);
    for (; done + lanes <= to.size(); done += lanes) hn::Stream(hn::LoadU(tag, in + done), tag, out + done);
    hwy::FlushStream();
  }
  if (done < to.size()) std::memcpy(to.data() + done, from + done, to.size() - done);
}

}  // namespace lockstep::collective
