#include "lockstep/backend/native/check_options.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

// The number of a stream is two bytes on the wire (docs/wire/links.md).
constexpr int kMostStreams = std::numeric_limits<std::uint16_t>::max();
// A window of a part is at least 64 elements of the largest type, complex128.
constexpr std::uint64_t kLeastPart = 64 * std::uint64_t{16};

}  // namespace

Status check_options(const WorldOptions& options, int neighbours) {
  if (options.streams < 1 || options.streams > kMostStreams)
    return Status::invalid(
        cat("WorldOptions::streams is ", options.streams, ", but must be 1 to ", kMostStreams));
  // Where every rank has a part for each, the staging is shared by all of them.
  const Bytes least{
      std::max(kLeastStaging.value, static_cast<std::uint64_t>(std::max(neighbours, 1)) * kLeastPart)};
  if (options.staging < least)
    return Status::invalid(cat("WorldOptions::staging is ", options.staging, ", but must be ", least,
                               " at least for ", neighbours, neighbours == 1 ? " rank" : " ranks",
                               " on one host"));
  return {};
}

}  // namespace lockstep::backend
