// What travels before the bytes of a value's tensors: its type in words, which tensors come, and the value.
// Grammar: docs/wire/objects.md.
//
// Thread safety: pure functions. The parser checks every length against what is left, and every tensor's
// size, before anything is made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::object {

constexpr std::size_t kMaxSchema = std::size_t{1} << 16;
constexpr std::size_t kMaxTensorDims = 64;
constexpr std::int64_t kMaxTensorElements = std::int64_t{1} << 44;
// Of an envelope. What is larger belongs into a tensor.
constexpr std::size_t kMaxEnvelope = std::size_t{1} << 31;

struct TensorHeader {
  std::uint8_t type = 0;  // at::ScalarType
  std::vector<std::int64_t> sizes = {};
  bool operator==(const TensorHeader&) const = default;
};

// Whether tensors of that shape travel. None of its sizes is negative, and their product (a 0 counts as 1) is
// within the limit.
bool acceptable(const TensorHeader& header);

// Borrows its texts and bytes.
struct Envelope {
  std::string_view schema;
  std::vector<TensorHeader> tensors;
  ByteView value;
};

Buffer write_envelope(const Envelope& envelope);
// Nothing if the bytes do not follow the grammar.
std::optional<Envelope> parse_envelope(ByteView bytes);

}  // namespace lockstep::object
