// Small buffers of one operation, side by side in one: they travel in the rounds of a single one.
//
// Elements are folded one by one, so the bits are those of the buffers alone.
// Does not: pack what is large; a copy would cost more than a round.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"

namespace lockstep::collective {

// Runs `operate` on each buffer, in place, in order; neighbours that are small together, as one. The same
// calls on every rank that has buffers of the same sizes.
Status for_each_packed(std::span<const ByteSpan> buffers, const std::function<Status(ByteSpan)>& operate);

}  // namespace lockstep::collective
