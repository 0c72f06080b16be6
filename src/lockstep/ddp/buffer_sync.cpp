#include "lockstep/ddp/buffer_sync.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"
#include "lockstep/ddp/logger.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/operation.h"

namespace lockstep::ddp {

void BufferSync::set_hook(BufferHook hook, BufferHookLocation where) {
  if (!hook) refuse("register_buffer_comm_hook: the hook is null.");
  hook_ = std::move(hook);
  where_ = where;
}

NamedTensors BufferSync::buffers() const {
  return without_repeats(module_.buffers(), options_.parameters_and_buffers_to_ignore);
}

std::string BufferSync::what_has_changed(const NamedTensors& all) const {
  const auto are_alike = [](const Kind& kind, const auto& buffer) { return kind.is_of(buffer); };
  if (std::equal(kinds_.begin(), kinds_.end(), all.begin(), all.end(), are_alike)) return {};
  std::unordered_map<std::string_view, const Kind*> known_by_name;
  for (const Kind& kind : kinds_) known_by_name.emplace(kind.name, &kind);
  std::vector<std::string> changes;
  for (const auto& [name, buffer] : all) {
    const auto found = known_by_name.find(name);
    if (found == known_by_name.end()) {
      changes.push_back(cat(base::quoted(name), " is new"));
    } else if (const Kind& known = *found->second; buffer.sizes() != known.sizes) {
      changes.push_back(cat(base::quoted(name), " has the shape ", tensor::shape_text(buffer), ", it had ",
                            tensor::shape_text(known.sizes)));
    } else if (buffer.scalar_type() != known.dtype) {
      changes.push_back(cat(base::quoted(name), " has the type ", c10::toString(buffer.scalar_type()),
                            ", it had ", c10::toString(known.dtype)));
    }
  }
  if (all.size() < kinds_.size()) changes.emplace_back("some are gone");
  return changes.empty() ? "their order" : base::join(changes, "; ");
}

BufferSync::Kind::Kind(const NamedTensors::value_type& buffer)
    : name(buffer.first), dtype(buffer.second.scalar_type()), sizes(buffer.second.sizes().vec()) {}

bool BufferSync::Kind::is_of(const NamedTensors::value_type& buffer) const {
  return buffer.second.scalar_type() == dtype && buffer.second.sizes() == sizes && buffer.first == name;
}

void BufferSync::broadcast(const NamedTensors& all, const tensor::ProcessGroup& group,
                           std::uint64_t purpose) {
  for (const auto& [name, buffer] : all) {
    if (const std::string why = why_not_shared(buffer); !why.empty())
      refuse(cat("the buffer ", base::quoted(name), ' ', why));
  }
  const std::string changes = what_has_changed(all);
  if (!changes.empty()) remember(all);
  try {
    // Bytes alone are sent: that they are of the same buffers on all ranks is what they are for.
    broadcast_from_first(all, group, purpose ^ checksum_of_kinds_);
  } catch (const tensor::Desync& error) {
    const Rank at{tensor::get_rank()};
    const std::string here = changes.empty() ? "are as they were" : cat("have changed: ", changes);
    throw tensor::Desync(error.status().with_prefix(
                             cat("the buffers of the module have other names, types or shapes on other ranks",
                                 changes.empty() ? ", or these are in the forward of another model" : "",
                                 "; those of rank ", at, ' ', here, ": ")),
                         at);
  }
}

void BufferSync::remember(const NamedTensors& all) {
  kinds_.clear();
  checksum_of_kinds_ = 0;
  const auto add = [this](base::ByteView bytes) {
    checksum_of_kinds_ = base::crc32c(bytes, checksum_of_kinds_);
  };
  for (const auto& buffer : all) {
    const Kind& kind = kinds_.emplace_back(buffer);
    const std::vector<std::int64_t> numbers = {static_cast<std::int64_t>(kind.name.size()),
                                               static_cast<std::int64_t>(kind.dtype),
                                               static_cast<std::int64_t>(kind.sizes.size())};
    add(base::bytes_of(kind.name));
    add(base::bytes_of(numbers));
    add(base::bytes_of(kind.sizes));
  }
}

void BufferSync::at_construction(const tensor::ProcessGroup& group, std::uint64_t purpose) {
  if (options_.forward_sync_buffers && options_.broadcast_buffers)
    kLog.warn("forward_sync_buffers and broadcast_buffers are both given; broadcast_buffers is ignored.");
  if (options_.init_sync && shares_buffers(options_)) broadcast(buffers(), group, purpose);
}

void BufferSync::around_forward(BufferHookLocation where, const tensor::ProcessGroup& group,
                                std::uint64_t purpose) {
  if (where != where_ || !on() || !module_.is_training()) return;  // in eval mode a rank may be alone
  const NamedTensors all = buffers();
  if (all.empty()) return;
  if (hook_) return hook_(all);
  broadcast(all, group, purpose);
}

}  // namespace lockstep::ddp
