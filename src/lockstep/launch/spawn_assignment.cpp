#include "lockstep/launch/spawn_assignment.h"

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

constexpr std::uint64_t kMagic = 0x6e776170732e6b6c;  // "lk.spawn"

}  // namespace

Result<Buffer> assignment_to_bytes(const Assignment& assignment) {
  Buffer bytes;
  base::ByteWriter writer(bytes);
  writer.integer(kMagic);
  writer.sized(std::string_view(assignment.function));
  writer.integer(static_cast<std::uint32_t>(assignment.arguments.size()));
  for (const std::string& argument : assignment.arguments) writer.sized(std::string_view(argument));
  if (bytes.size() > kMaxAssignment) {
    return Status::invalid(cat("the arguments of a spawned function are limited to ", Bytes{kMaxAssignment}));
  }
  return bytes;
}

Result<Assignment> assignment_from_bytes(ByteView bytes) {
  base::ByteReader reader(bytes);
  Assignment assignment;
  const bool is_ours = bytes.size() <= kMaxAssignment && reader.integer<std::uint64_t>() == kMagic;
  if (!is_ours) return Status::invalid("these bytes are no assignment of a spawned rank");
  assignment.function = text_of(reader.sized(kMaxAssignment));
  const auto count = reader.integer<std::uint32_t>();
  for (std::uint32_t i = 0; reader.ok() && i < count; ++i) {
    assignment.arguments.emplace_back(text_of(reader.sized(kMaxAssignment)));
  }
  if (!reader.complete()) return Status::invalid("the assignment of a spawned rank is damaged");
  return assignment;
}

}  // namespace lockstep::launch
