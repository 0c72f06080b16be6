#include "lockstep/object/envelope.h"

#include <algorithm>
#include <utility>

namespace lockstep::object {
namespace {

constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kSmallestHeader = 2;  // of a tensor without dimensions

}  // namespace

bool acceptable(const TensorHeader& header) {
  std::int64_t elements = 1;
  for (const std::int64_t size : header.sizes) {
    if (size < 0 || size > kMaxTensorElements / elements) return false;
    elements *= std::max<std::int64_t>(size, 1);
  }
  return header.sizes.size() <= kMaxTensorDims;
}

Buffer write_envelope(const Envelope& envelope) {
  Buffer bytes;
  base::ByteWriter out(bytes);
  out.integer(kVersion);
  out.sized(envelope.schema);
  out.integer(static_cast<std::uint32_t>(envelope.tensors.size()));
  for (const TensorHeader& header : envelope.tensors) {
    out.integer(header.type);
    out.integer(static_cast<std::uint8_t>(header.sizes.size()));
    for (const std::int64_t size : header.sizes) out.integer(size);
  }
  out.raw(envelope.value);
  return bytes;
}

std::optional<Envelope> parse_envelope(ByteView bytes) {
  base::ByteReader in(bytes);
  Envelope envelope;
  if (in.integer<std::uint8_t>() != kVersion) return std::nullopt;
  envelope.schema = text_of(in.sized(kMaxSchema));
  const auto count = in.integer<std::uint32_t>();
  if (count > in.left() / kSmallestHeader) return std::nullopt;
  envelope.tensors.reserve(count);
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    TensorHeader header{.type = in.integer<std::uint8_t>()};
    const auto dims = in.integer<std::uint8_t>();
    if (dims > kMaxTensorDims) return std::nullopt;
    for (std::size_t d = 0; d < dims && in.ok(); ++d) header.sizes.push_back(in.integer<std::int64_t>());
    if (!acceptable(header)) return std::nullopt;
    envelope.tensors.push_back(std::move(header));
  }
  envelope.value = in.take(in.left());
  if (!in.ok()) return std::nullopt;
  return envelope;
}

}  // namespace lockstep::object
