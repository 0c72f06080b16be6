// Types that have everything a value can have, for tests and the fuzzer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/object/codec.h"

namespace lockstep::object {

enum class Color : std::uint8_t { kRed, kGreen };

struct Empty {
  bool operator==(const Empty&) const = default;
};
LOCKSTEP_OBJECT(Empty)

struct Inner {
  std::string name;
  std::vector<float> weights;
  bool operator==(const Inner&) const = default;
};
LOCKSTEP_OBJECT(Inner, name, weights)

struct Tree {
  int value = 0;
  std::vector<Tree> children;
  bool operator==(const Tree&) const = default;
};
LOCKSTEP_OBJECT(Tree, value, children)

struct Rich {
  bool flag = false;
  std::int16_t number = 0;
  double real = 0;
  Color color = Color::kRed;
  std::optional<Inner> inner;
  std::vector<Inner> list;
  std::map<std::string, std::pair<int, float>> map;
  std::variant<int, std::string, Inner> either;
  Tree tree;
  Empty empty;
  bool operator==(const Rich&) const = default;
};
LOCKSTEP_OBJECT(Rich, flag, number, real, color, inner, list, map, either, tree, empty)

inline Rich rich_example() {
  return {.flag = true,
          .number = -300,
          .real = 0.25,
          .color = Color::kGreen,
          .inner = Inner{"inner", {1, 2, 3}},
          .list = {{"a", {}}, {"b", {4}}},
          .map = {{"x", {1, 1.5F}}, {"y", {2, 2.5F}}},
          .either = Inner{"either", {}},
          .tree = {1, {{2, {}}, {3, {}}}},
          .empty = {}};
}

}  // namespace lockstep::object
