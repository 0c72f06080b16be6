// Text for messages: cat("rank ", rank, ": ", bytes) and the few conversions that messages and options share.
//
// Thread safety: pure functions. (std::format does not exist in this compiler's library, and fmt must not be
// seen outside base's .cpp files.)
#pragma once

#include <charconv>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/types.h"

namespace lockstep::base {

inline void append_text(std::string& out, std::string_view text) { out += text; }
inline void append_text(std::string& out, const char* text) { out += text; }
inline void append_text(std::string& out, const std::string& text) { out += text; }
inline void append_text(std::string& out, char c) { out += c; }
inline void append_text(std::string& out, bool value) { out += value ? "true" : "false"; }
template <std::integral T>
void append_text(std::string& out, T value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  out.append(digits, end.ptr);
}
// Six significant digits.
void append_text(std::string& out, double value);
inline void append_text(std::string& out, Rank rank) { append_text(out, rank.value); }
inline void append_text(std::string& out, WorldSize size) { append_text(out, size.value); }
// "512 B", "1.5 KiB", "25.0 MiB".
void append_text(std::string& out, Bytes bytes);
// "850 ns", "1.2 us", "30.0 s", "30 min".
void append_text(std::string& out, std::chrono::nanoseconds duration);

// Concatenates its arguments as a person would read them.
template <typename... Args>
std::string cat(const Args&... args) {
  std::string out;
  (append_text(out, args), ...);
  return out;
}

// "a, b, c"
std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");
// Splits at every separator; empty parts are kept; splitting "" gives one empty part.
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

// "0-2, 4, 6-7": ranks as a person would list them. `ranks` is ascending.
std::string ranks_text(const std::vector<Rank>& ranks);

// Parse the whole of `text` or give nothing: no leading space, no trailing junk, no silent overflow.
template <std::integral T>
std::optional<T> parse_integer(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}
// "4096", "64KiB", "25 MiB", "1GiB", and K/M/G alone as the binary units.
std::optional<Bytes> parse_bytes(std::string_view text);
// "30" (seconds), "1.5s", "250ms", "5min", "1h".
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);
// 1/0, true/false, yes/no, on/off in any case.
std::optional<bool> parse_bool(std::string_view text);

// Quotes a string from outside for a message: at most `limit` characters, anything unprintable as \xNN.
// An object, not a function: a call with a std::string would find std::quoted as well, and prefer it.
struct Quoted {
  std::string operator()(std::string_view text, std::size_t limit = 120) const;
};
inline constexpr Quoted quoted;

}  // namespace lockstep::base

namespace lockstep {
using base::cat;
}
