#include "lockstep/launch/shared_log.h"

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

std::string entry_key(std::int64_t entry) { return cat("log/", entry); }

}  // namespace

Status SharedLog::append(const AgentMessage& message, const Deadline& deadline) {
  const std::string text = message_to_json(message);
  // Everything before next_ is there; others may have written more.
  for (std::int64_t entry = next_;; ++entry) {
    LOCKSTEP_ASSIGN(const Buffer there, store_.compare_set(entry_key(entry), {}, bytes_of(text), deadline));
    if (text_of(there) == text) return {};  // ours, or one of ours that says the same
  }
}

Result<std::optional<AgentMessage>> SharedLog::read(const Deadline& deadline) {
  const auto entry = store_.get(entry_key(next_), deadline);
  if (!entry.ok() && entry.status().code() == Code::kTimeout) return std::optional<AgentMessage>();
  if (!entry.ok()) return entry.status();
  ++next_;
  LOCKSTEP_ASSIGN(AgentMessage message, message_from_json(text_of(*entry)));
  return std::optional(std::move(message));
}

}  // namespace lockstep::launch
