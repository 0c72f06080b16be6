// Whether ranks are in one operation, where their fingerprints alone do not say it.
//
// Every rank knows its own parts of an all_to_all only: to one they may be even, or all empty, and to another
// uneven.
#pragma once

#include "lockstep/collective/fingerprint.h"

namespace lockstep::collective {

// What all ranks of the operation have in common. The sizes of an all_to_all are compared by each pair.
constexpr Fingerprint common_to_all(Fingerprint fingerprint) {
  if (fingerprint.kind == OpKind::kAllToAll) fingerprint.count = fingerprint.detail = 0;
  return fingerprint;
}

// For backends whose pairs cannot compare: two ranks whose parts are even must have the same.
constexpr bool can_be_one(const Fingerprint& a, const Fingerprint& b) {
  const bool both_even = a.detail == b.detail;
  return both_even ? a == b : common_to_all(a) == common_to_all(b);
}

}  // namespace lockstep::collective
