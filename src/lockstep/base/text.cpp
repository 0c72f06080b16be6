#include "lockstep/base/text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

namespace lockstep::base {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string one_decimal(double value) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%.1f", value);
  return digits;
}

// Splits "1.5 MiB" into 1.5 and "mib". Nothing if the number is missing, negative or not finite.
struct Quantity {
  double number;
  std::string unit;
};
std::optional<Quantity> parse_quantity(std::string_view text) {
  text = trim(text);
  if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.'))
    return std::nullopt;
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number)) return std::nullopt;
  return Quantity{number, lower(trim(text.substr(static_cast<std::size_t>(end - text.data()))))};
}

}  // namespace

void append_text(std::string& out, double value) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%g", value);
  out += digits;
}

void append_text(std::string& out, Bytes bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes.value < 1024) {
    append_text(out, bytes.value);
    out += " B";
    return;
  }
  double value = static_cast<double>(bytes.value) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  out += one_decimal(value);
  out += ' ';
  out += kUnits[unit];
}

void append_text(std::string& out, std::chrono::nanoseconds duration) {
  const auto nanos = static_cast<double>(duration.count());
  const double size = std::abs(nanos);
  if (size < 1e3) {
    append_text(out, duration.count());
    out += " ns";
  } else if (size < 1e6) {
    out += one_decimal(nanos / 1e3) + " us";
  } else if (size < 1e9) {
    out += one_decimal(nanos / 1e6) + " ms";
  } else if (size < 120e9) {
    out += one_decimal(nanos / 1e9) + " s";
  } else if (size < 7200e9) {
    append_text(out, nanos / 60e9);
    out += " min";
  } else {
    append_text(out, nanos / 3600e9);
    out += " h";
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1].value == ranks[last].value + 1) ++last;
    if (!out.empty()) out += ", ";
    append_text(out, ranks[i]);
    if (last > i) out += cat(last == i + 1 ? ", " : "-", ranks[last]);
    i = last + 1;
  }
  return out;
}

std::optional<Bytes> parse_bytes(std::string_view text) {
  const auto quantity = parse_quantity(text);
  if (!quantity) return std::nullopt;
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},         {"b", 1},      {"k", 0x1p10},   {"kib", 0x1p10}, {"m", 0x1p20},
      {"mib", 0x1p20}, {"g", 0x1p30}, {"gib", 0x1p30}, {"t", 0x1p40},   {"tib", 0x1p40},
      {"kb", 1e3},     {"mb", 1e6},   {"gb", 1e9},     {"tb", 1e12}};
  for (const auto& [name, factor] : kUnits) {
    if (quantity->unit != name) continue;
    const double bytes = quantity->number * factor;
    if (bytes >= 0x1p63 || bytes != std::floor(bytes)) return std::nullopt;
    return Bytes{static_cast<std::uint64_t>(bytes)};
  }
  return std::nullopt;
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  const auto quantity = parse_quantity(text);
  if (!quantity) return std::nullopt;
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1e9}, {"s", 1e9}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}};
  for (const auto& [name, factor] : kUnits) {
    if (quantity->unit != name) continue;
    const double nanos = quantity->number * factor;
    if (nanos >= 0x1p62) return std::nullopt;
    return std::chrono::nanoseconds(std::llround(nanos));
  }
  return std::nullopt;
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") return true;
  if (word == "0" || word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::string Quoted::operator()(std::string_view text, std::size_t limit) const {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  out += text.size() > limit ? "...\"" : "\"";
  return out;
}

}  // namespace lockstep::base
