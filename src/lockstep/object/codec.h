// Which C++ values can be sent, and how: the Codec of each type.
//
//   struct Sample { std::string name; std::vector<float> weights; at::Tensor image; };
//   LOCKSTEP_OBJECT(Sample, name, weights, image)
//
// That line, beside the struct and in its namespace, makes it sendable: by itself, in other such structs, and
// in the types below. Its fields are public, its constructor without arguments too.
// Sendable are: bool, whole numbers, float, double, enum class, std::string, std::byte, vector, array,
// optional, pair, tuple, map, unordered_map, variant, monostate; and at::Tensor with tensor/objects.h. A type
// of another kind gets its own specialisation of Codec.
//
// A type's schema is its structure in words: "Sample{name: string, weights: list<float32>, image: tensor}".
// Two types with the same schema are the same to a receiver. Numbers are told apart by size and sign, so that
// long and long long are one. Thread safety: pure functions.
#pragma once

#include <array>
#include <concepts>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/object/archive.h"
#include "lockstep/object/fields.h"

namespace lockstep::object {

// Collects a schema. A struct that contains itself (in a list, say) is not described again inside itself.
class Description {
 public:
  void text(std::string_view text) { text_ += text; }
  // `body` describes the fields of the struct that `tag` stands for.
  template <typename Body>
  void named(const void* tag, std::string_view name, const Body& body) {
    for (std::size_t i = 0; i < around_.size(); ++i) {
      if (around_[i] == tag) return text(cat(name, '^', around_.size() - i));
    }
    around_.push_back(tag);
    text(cat(name, '{'));
    body();
    text("}");
    around_.pop_back();
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::vector<const void*> around_;
};

// describe() adds the schema, write() the value; read() gives what was written, or, from bytes that another
// type has written, any value and a Document that is no longer ok().
template <typename T>
struct Codec;

template <typename T>
concept Sendable = requires(Description& description, Writer& out, const Reader& in, const T& value) {
  Codec<T>::describe(description);
  Codec<T>::write(out, value);
  { Codec<T>::read(in) } -> std::same_as<T>;
};

template <Sendable T>
const std::string& schema_of() {
  static const std::string schema = [] {
    Description description;
    Codec<T>::describe(description);
    return description.take();
  }();
  return schema;
}

// "list<float32>" of Parts...
template <typename... Parts>
void describe_parts(Description& description, std::string_view name) {
  description.text(cat(name, '<'));
  std::string_view between;
  ((description.text(between), Codec<Parts>::describe(description), between = ", "), ...);
  description.text(">");
}

template <>
struct Codec<bool> {
  static void describe(Description& description) { description.text("bool"); }
  static void write(Writer& out, bool value) { out.boolean(value); }
  static bool read(const Reader& in) { return in.boolean(); }
};

template <std::integral T>
struct Codec<T> {
  static void describe(Description& description) {
    description.text(cat(std::is_signed_v<T> ? "int" : "uint", 8 * sizeof(T)));
  }
  static void write(Writer& out, T value) {
    if constexpr (std::is_signed_v<T>) {
      out.integer(value);
    } else {
      out.natural(value);
    }
  }
  static T read(const Reader& in) { return in.integer<T>(); }
};

template <>
struct Codec<float> {
  static void describe(Description& description) { description.text("float32"); }
  static void write(Writer& out, float value) { out.real(value); }
  static float read(const Reader& in) { return in.real32(); }
};
template <>
struct Codec<double> {
  static void describe(Description& description) { description.text("float64"); }
  static void write(Writer& out, double value) { out.real(value); }
  static double read(const Reader& in) { return in.real64(); }
};

template <typename T>
concept ScopedEnum = std::is_enum_v<T> && !std::is_convertible_v<T, std::underlying_type_t<T>>;

// Any value of its whole type: who switches over it expects others than its enumerators.
template <ScopedEnum T>
struct Codec<T> {
  using Number = std::underlying_type_t<T>;
  static void describe(Description& description) { describe_parts<Number>(description, "enum"); }
  static void write(Writer& out, T value) { Codec<Number>::write(out, static_cast<Number>(value)); }
  static T read(const Reader& in) { return static_cast<T>(Codec<Number>::read(in)); }
};

template <>
struct Codec<std::string> {
  static void describe(Description& description) { description.text("string"); }
  static void write(Writer& out, const std::string& value) { out.text(value); }
  static std::string read(const Reader& in) { return std::string(in.text()); }
};

template <>
struct Codec<std::monostate> {
  static void describe(Description& description) { description.text("nothing"); }
  static void write(Writer& out, std::monostate) { out.nothing(); }
  static std::monostate read(const Reader& in) {
    if (!in.is_nothing()) in.fail();
    return {};
  }
};

// Numbers lie in a vector as they travel.
template <typename T>
concept PlainNumber = (std::integral<T> || std::same_as<T, float> || std::same_as<T, double> ||
                       std::same_as<T, std::byte>)&&!std::same_as<T, bool>;

template <typename T>
struct Codec<std::vector<T>> {
  static void describe(Description& description) { describe_parts<T>(description, "list"); }
  static void write(Writer& out, const std::vector<T>& value) {
    if constexpr (PlainNumber<T>) {
      out.bytes(bytes_of(value));
    } else {
      out.list(value.size());
      for (const auto& item : value) Codec<T>::write(out, item);
    }
  }
  static std::vector<T> read(const Reader& in) {
    std::vector<T> value;
    if constexpr (PlainNumber<T>) {
      const ByteView bytes = in.bytes();
      if (bytes.size() % sizeof(T) != 0) in.fail();
      value.resize(bytes.size() / sizeof(T));
      if (!value.empty()) std::memcpy(value.data(), bytes.data(), value.size() * sizeof(T));
    } else {
      const std::size_t count = in.list();
      for (std::size_t i = 0; i < count; ++i) value.push_back(Codec<T>::read(in.item(i)));
    }
    return value;
  }
};

template <>
struct Codec<std::byte> {
  static void describe(Description& description) { description.text("byte"); }
  static void write(Writer& out, std::byte value) { out.natural(std::to_integer<std::uint8_t>(value)); }
  static std::byte read(const Reader& in) { return std::byte{in.integer<std::uint8_t>()}; }
};

template <typename T>
struct Codec<std::optional<T>> {
  static void describe(Description& description) { describe_parts<T>(description, "optional"); }
  static void write(Writer& out, const std::optional<T>& value) {
    out.list(value ? 1 : 0);
    if (value) Codec<T>::write(out, *value);
  }
  static std::optional<T> read(const Reader& in) {
    const std::size_t count = in.list();
    if (count > 1) in.fail();
    return count == 1 ? std::optional<T>(Codec<T>::read(in.item(0))) : std::nullopt;
  }
};

// What has as many parts as its type says: pair, tuple, array.
template <typename T, typename... Parts>
struct TupleCodec {
  static void write(Writer& out, const T& value) {
    out.list(sizeof...(Parts));
    std::apply([&out](const auto&... parts) { (Codec<Parts>::write(out, parts), ...); }, value);
  }
  static T read(const Reader& in) {
    if (in.list() != sizeof...(Parts)) in.fail();
    return read_items(in, std::index_sequence_for<Parts...>());
  }

 private:
  template <std::size_t... I>
  static T read_items([[maybe_unused]] const Reader& in, std::index_sequence<I...>) {
    return T{Codec<Parts>::read(in.item(I))...};
  }
};
template <typename... Parts>
struct Codec<std::tuple<Parts...>> : TupleCodec<std::tuple<Parts...>, Parts...> {
  static void describe(Description& description) { describe_parts<Parts...>(description, "tuple"); }
};
template <typename A, typename B>
struct Codec<std::pair<A, B>> : TupleCodec<std::pair<A, B>, A, B> {
  static void describe(Description& description) { describe_parts<A, B>(description, "tuple"); }
};

template <typename T, std::size_t N>
struct Codec<std::array<T, N>> {
  static void describe(Description& description) { describe_parts<T>(description, cat("array", N)); }
  static void write(Writer& out, const std::array<T, N>& value) {
    out.list(N);
    for (const T& item : value) Codec<T>::write(out, item);
  }
  static std::array<T, N> read(const Reader& in) {
    std::array<T, N> value{};
    if (in.list() != N) in.fail();
    for (std::size_t i = 0; i < N; ++i) value[i] = Codec<T>::read(in.item(i));
    return value;
  }
};

template <typename Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  static void describe(Description& description) { describe_parts<Key, Value>(description, "map"); }
  static void write(Writer& out, const Map& map) {
    out.list(2 * map.size());
    for (const auto& [key, value] : map) {
      Codec<Key>::write(out, key);
      Codec<Value>::write(out, value);
    }
  }
  static Map read(const Reader& in) {
    Map map;
    const std::size_t count = in.list();
    for (std::size_t i = 0; i < count; i += 2) {
      Key key = Codec<Key>::read(in.item(i));
      if (!map.emplace(std::move(key), Codec<Value>::read(in.item(i + 1))).second) in.fail();
    }
    return map;
  }
};
template <typename Key, typename Value>
struct Codec<std::map<Key, Value>> : MapCodec<std::map<Key, Value>> {};
template <typename Key, typename Value>
struct Codec<std::unordered_map<Key, Value>> : MapCodec<std::unordered_map<Key, Value>> {};

template <typename First, typename... Rest>
struct Codec<std::variant<First, Rest...>> {
  using Variant = std::variant<First, Rest...>;
  static void describe(Description& description) { describe_parts<First, Rest...>(description, "variant"); }
  static void write(Writer& out, const Variant& value) {
    out.list(2);
    out.natural(value.index());
    std::visit([&out](const auto& held) { Codec<std::decay_t<decltype(held)>>::write(out, held); }, value);
  }
  static Variant read(const Reader& in) {
    if (in.list() != 2) in.fail();
    return read_nth<0>(in, in.item(0).template integer<std::uint8_t>());
  }

 private:
  template <std::size_t I>
  static Variant read_nth(const Reader& in, std::size_t index) {
    if constexpr (I == sizeof...(Rest) + 1) {
      in.fail();
      return Variant(std::in_place_index<0>, Codec<First>::read(in.item(1)));
    } else {
      using Nth = std::variant_alternative_t<I, Variant>;
      if (index == I) return Variant(std::in_place_index<I>, Codec<Nth>::read(in.item(1)));
      return read_nth<I + 1>(in, index);
    }
  }
};

template <typename T>
inline constexpr char kTag = 0;  // its address stands for the type

template <Declared T>
struct Codec<T> {
  static void describe(Description& description) {
    description.named(&kTag<T>, fields_of<T>().name, [&description] {
      std::string_view between;
      std::apply(
          [&](const auto&... fields) {
            ((description.text(cat(between, fields.name, ": ")),
              Codec<typename std::decay_t<decltype(fields)>::Value>::describe(description), between = ", "),
             ...);
          },
          fields_of<T>().fields);
    });
  }
  static void write(Writer& out, const T& value) {
    std::apply(
        [&](const auto&... fields) {
          out.list(sizeof...(fields));
          (Codec<typename std::decay_t<decltype(fields)>::Value>::write(out, value.*fields.member), ...);
        },
        fields_of<T>().fields);
  }
  static T read(const Reader& in) {
    T value{};
    std::apply(
        [&](const auto&... fields) {
          if (in.list() != sizeof...(fields)) in.fail();
          [[maybe_unused]] std::size_t i = 0;
          ((value.*fields.member = Codec<typename std::decay_t<decltype(fields)>::Value>::read(in.item(i++))),
           ...);
        },
        fields_of<T>().fields);
    return value;
  }
};

}  // namespace lockstep::object
