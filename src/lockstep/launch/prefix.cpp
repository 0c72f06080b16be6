#include "lockstep/launch/prefix.h"

#include <array>

#include "lockstep/base/text.h"

namespace lockstep::launch {

std::optional<PrefixTemplate::Field> PrefixTemplate::field_named(std::string_view name) {
  if (name == "rank") return Field::kRank;
  if (name == "local_rank") return Field::kLocalRank;
  if (name == "role") return Field::kRole;
  if (name == "host") return Field::kHost;
  if (name == "node") return Field::kNode;
  return std::nullopt;
}

Result<PrefixTemplate> PrefixTemplate::parse(std::string_view text) {
  const auto wrong = [text](std::string_view what) {
    return Status::invalid(
        cat("--prefix ", base::quoted(text), " is not valid: ", what,
            "; the fields are {rank}, {local_rank}, {role}, {host} and {node}, and a brace is "
            "written twice"));
  };
  PrefixTemplate result;
  std::string literal;
  const auto flush = [&] {
    if (!literal.empty()) result.pieces_.push_back({Field::kText, std::exchange(literal, {})});
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n' || c == '\r') return wrong("it has a line break");
    if (c != '{' && c != '}') {
      literal += c;
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == c) {
      literal += c;
      ++i;
      continue;
    }
    if (c == '}') return wrong("a } has no {");
    const auto end = text.find('}', i);
    if (end == std::string_view::npos) return wrong("a { has no }");
    const std::string_view name = text.substr(i + 1, end - i - 1);
    const auto field = field_named(name);
    if (!field) return wrong(cat("there is no field {", name, "}"));
    flush();
    result.pieces_.push_back({*field});
    i = end;
  }
  flush();
  return result;
}

std::string PrefixTemplate::render(const RankPlace& place) const {
  std::string out;
  for (const Piece& piece : pieces_) {
    switch (piece.field) {
      case Field::kText:
        out += piece.text;
        break;
      case Field::kRank:
        out += cat(place.rank);
        break;
      case Field::kLocalRank:
        out += cat(place.local_rank);
        break;
      case Field::kRole:
        out += place.role;
        break;
      case Field::kHost:
        out += place.host;
        break;
      case Field::kNode:
        out += cat(place.node);
        break;
    }
  }
  return out;
}

std::string in_rank_colour(std::string_view text, Rank rank) {
  constexpr std::array kColours = {36, 32, 33, 35, 34, 96, 92, 93, 95, 94};
  if (text.empty()) return {};
  return cat("\x1b[", kColours[static_cast<std::size_t>(rank.value) % kColours.size()], "m", text, "\x1b[0m");
}

}  // namespace lockstep::launch
