// A Status as bytes, for telling another process what went wrong. Grammar: docs/wire/status.md.
//
// Thread safety: pure functions. The parser checks every length against what is left before anything is made
// of it.
#pragma once

#include <cstddef>

#include "lockstep/base/bytes.h"
#include "lockstep/base/status.h"

namespace lockstep::base {

// Texts, and the list of missing ranks, are cut so that no status is longer than this.
constexpr std::size_t kMaxStatusSize = 1024;

Buffer write_status(const Status& status);
// The error that the bytes tell of; kInternal with kCorruptFrame if they do not follow the grammar.
Status parse_status(ByteView bytes);

}  // namespace lockstep::base
