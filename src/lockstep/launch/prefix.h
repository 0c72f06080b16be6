// The text before each line of a rank's output: "[rank {rank}] ".
//
// Thread safety: values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/launch/placement.h"

namespace lockstep::launch {

class PrefixTemplate {
 public:
  // Fields: {rank}, {local_rank}, {role}, {host}, {node}; {{ and }} are braces. kInvalid names what is wrong.
  static Result<PrefixTemplate> parse(std::string_view text);
  std::string render(const RankPlace& place) const;

 private:
  enum class Field { kText, kRank, kLocalRank, kRole, kHost, kNode };
  struct Piece {
    Field field = Field::kText;
    std::string text = {};
  };
  static std::optional<Field> field_named(std::string_view name);

  std::vector<Piece> pieces_;
};

// The same text in a colour of its own for each rank, with the codes of a terminal.
std::string in_rank_colour(std::string_view text, Rank rank);

}  // namespace lockstep::launch
