#include "lockstep/collective/helpers.h"

#include <algorithm>
#include <vector>

#include "lockstep/collective/copy.h"
#include "lockstep/collective/slices.h"

namespace lockstep::collective {
namespace {

// Bytes to read below which one more thread costs more than it saves.
constexpr std::size_t kWorthAThread = std::size_t{256} << 10;

int parts_for(const Helpers& helpers, std::size_t bytes) {
  const auto most = static_cast<std::size_t>(helpers.count());
  return static_cast<int>(std::clamp<std::size_t>(bytes / kWorthAThread, 1, most));
}

}  // namespace

const Means& Means::none() {
  static Alone alone;
  static const Means means{.tuning = {}, .helpers = alone};
  return means;
}

void fold_together(Helpers& helpers, const Fold& how, std::span<const std::byte* const> sources,
                   std::span<std::byte* const> destinations, std::size_t count) {
  const std::size_t element = size_of(how.type);
  const int parts = parts_for(helpers, count * element * sources.size());
  if (parts == 1) {
    fold(how, sources, destinations, count);
    return;
  }
  // Everything that needs memory is done here: a helper has nobody to tell that there is none.
  struct Part {
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    std::size_t count = 0;
  };
  std::vector<Part> work(static_cast<std::size_t>(parts));
  for (int part = 0; part < parts; ++part) {
    const Slice slice = slice_of(count, element, parts, part);
    const std::size_t at = slice.begin * element;
    Part& own = work[static_cast<std::size_t>(part)];
    own.from.assign(sources.begin(), sources.end());
    own.to.assign(destinations.begin(), destinations.end());
    for (const std::byte*& source : own.from) source += at;
    for (std::byte*& destination : own.to) destination += at;
    own.count = slice.count();
  }
  helpers.run(parts, [&](int part) {
    const Part& own = work[static_cast<std::size_t>(part)];
    fold(how, own.from, own.to, own.count);
  });
}

void copy_together(const Means& means, ByteSpan to, const std::byte* from) {
  const CopyWay way = means.tuning.copy_way(to.size());
  const int parts = parts_for(means.helpers, to.size());
  if (parts == 1) {
    copy_for_peers(to, from, way);
    return;
  }
  means.helpers.run(parts, [&](int part) {
    const Slice slice = slice_of(to.size(), 1, parts, part);
    copy_for_peers(to.subspan(slice.begin, slice.count()), from + slice.begin, way);
  });
}

}  // namespace lockstep::collective
