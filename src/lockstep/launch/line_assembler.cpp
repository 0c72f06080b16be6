#include "lockstep/launch/line_assembler.h"

#include <algorithm>

namespace lockstep::launch {
namespace {

// What a terminal shows of a line once it is complete.
std::string_view last_state(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const auto returned = line.rfind('\r');
  return returned == std::string_view::npos ? line : line.substr(returned + 1);
}

bool continues_a_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

void LineAssembler::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    const std::size_t rest = newline == std::string_view::npos ? bytes.size() : newline;
    const std::size_t taken = std::min(rest, limit_ - pending_.size());
    const bool ends_here = newline != std::string_view::npos && taken == newline;
    if (ends_here && pending_.empty()) {
      emit(last_state(bytes.substr(0, taken)));  // the common case: no copy
    } else {
      pending_.append(bytes, 0, taken);
      if (ends_here) {
        emit(last_state(pending_));
        pending_.clear();
      } else if (too_long()) {
        emit_piece(emit);
      }
    }
    bytes.remove_prefix(taken + (ends_here ? 1 : 0));
  }
}

bool LineAssembler::too_long() const {
  constexpr std::size_t kBarShare = 16;
  return pending_.size() >= limit_ ||
         (pending_.size() >= limit_ / kBarShare && pending_.find('\r', 1) != std::string::npos);
}

void LineAssembler::emit_piece(const Emit& emit) {
  const auto returned = pending_.rfind('\r');
  if (returned != std::string::npos && returned > 0) {
    emit(last_state(std::string_view(pending_).substr(0, returned)));
    pending_.erase(0, returned + 1);
    return;
  }
  // Before the last character, if that may be cut in two.
  std::size_t cut = pending_.size();
  for (int i = 0; i < 3 && cut > 1 && continues_a_character(pending_[cut - 1]); ++i) --cut;
  if (static_cast<unsigned char>(pending_[cut - 1]) >= 0xC0) cut = cut > 1 ? cut - 1 : pending_.size();
  emit(std::string_view(pending_).substr(0, cut));
  pending_.erase(0, cut);
}

void LineAssembler::finish(const Emit& emit) {
  if (!pending_.empty()) emit(last_state(pending_));
  pending_.clear();
}

}  // namespace lockstep::launch
