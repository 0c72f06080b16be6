// Values as bytes: what is written is read again, and what nobody has written is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <any>
#include <cmath>
#include <limits>
#include <random>

#include "lockstep/object/codec.h"
#include "lockstep/object/envelope.h"
#include "lockstep/object/object_test_support.h"

namespace lockstep::object {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
Buffer bytes_of_value(const T& value) {
  Writer out;
  Codec<T>::write(out, value);
  EXPECT_TRUE(out.readable());
  return out.written();
}

// Nothing if the bytes are not those of a T.
template <typename T>
std::optional<T> value_of(ByteView bytes, std::vector<std::any> attached = {}) {
  Document document(bytes, std::move(attached));
  T value = Codec<T>::read(document.root());
  if (!document.ok()) return std::nullopt;
  return value;
}

template <typename T>
void expect_round_trip(const T& value) {
  const Buffer bytes = bytes_of_value(value);
  EXPECT_TRUE(value_of<T>(bytes) == std::optional<T>(value)) << schema_of<T>();
}

TEST(Object, NumbersKeepTheirValues) {
  expect_round_trip(true);
  expect_round_trip(std::numeric_limits<std::int8_t>::min());
  expect_round_trip(std::numeric_limits<std::int64_t>::min());
  expect_round_trip(std::numeric_limits<std::int64_t>::max());
  expect_round_trip(std::numeric_limits<std::uint64_t>::max());
  expect_round_trip(std::uint16_t{65535});
  expect_round_trip('x');
  expect_round_trip(0.1F);
  EXPECT_TRUE(std::signbit(*value_of<float>(bytes_of_value(-0.0F))));
  EXPECT_TRUE(std::isnan(*value_of<double>(bytes_of_value(std::nan("1")))));
  expect_round_trip(std::numeric_limits<float>::denorm_min());
  expect_round_trip(-std::numeric_limits<double>::infinity());
  expect_round_trip(Color::kGreen);
  expect_round_trip(std::byte{0xFE});
}

TEST(Object, ContainersKeepTheirValues) {
  expect_round_trip(std::string());
  expect_round_trip(std::string(70000, 'x') + std::string(1, '\0'));
  expect_round_trip(std::vector<double>{1, -0.5});
  expect_round_trip(std::vector<double>{});
  expect_round_trip(std::vector<bool>{true, false});
  expect_round_trip(std::vector<std::byte>{std::byte{1}});
  expect_round_trip(std::vector<std::vector<std::string>>{{"a", ""}, {}, {"b"}});
  expect_round_trip(std::array<int, 3>{1, 2, 3});
  expect_round_trip(std::optional<std::optional<int>>(std::optional<int>()));
  expect_round_trip(std::optional<int>());
  expect_round_trip(std::pair<int, std::string>{1, "one"});
  expect_round_trip(std::tuple<>{});
  expect_round_trip(std::tuple<bool, std::uint8_t, float>{true, 2, 3});
  expect_round_trip(std::map<std::string, int>{{"a", 1}, {"b", 2}});
  expect_round_trip(std::unordered_map<int, std::vector<int>>{{1, {1}}, {2, {}}});
  expect_round_trip(std::variant<int, std::string, std::monostate>("text"));
  expect_round_trip(std::variant<int, std::string, std::monostate>(std::monostate{}));
}

TEST(Object, AStructTakesOneLine) {
  expect_round_trip(rich_example());
  expect_round_trip(Empty{});
  EXPECT_EQ(schema_of<Empty>(), "Empty{}");
  EXPECT_EQ(schema_of<Inner>(), "Inner{name: string, weights: list<float32>}");
  EXPECT_THAT(schema_of<Rich>(), HasSubstr("inner: optional<Inner{name: string, weights: list<float32>}>"));
}

TEST(Object, AStructMayContainItself) {
  EXPECT_EQ(schema_of<Tree>(), "Tree{value: int32, children: list<Tree^1>}");
  expect_round_trip(Tree{1, {{2, {}}, {3, {{4, {}}}}}});
}

TEST(Object, SchemasTellStructuresApartAndNothingElse) {
  EXPECT_EQ(schema_of<long>(), schema_of<long long>());
  EXPECT_NE(schema_of<int>(), schema_of<unsigned>());
  EXPECT_EQ((schema_of<std::map<int, bool>>()), (schema_of<std::unordered_map<int, bool>>()));
  EXPECT_EQ((schema_of<std::variant<int, std::monostate>>()), "variant<int32, nothing>");
  EXPECT_EQ((schema_of<std::pair<Color, std::array<float, 2>>>()), "tuple<enum<uint8>, array2<float32>>");
}

TEST(Object, BytesOfAnotherTypeAreNoValue) {
  EXPECT_FALSE(value_of<int>(bytes_of_value(std::string("1"))));
  EXPECT_FALSE(value_of<std::int8_t>(bytes_of_value(128)));
  EXPECT_FALSE(value_of<unsigned>(bytes_of_value(-1)));
  EXPECT_FALSE(value_of<float>(bytes_of_value(1.0)));
  EXPECT_FALSE((value_of<std::vector<std::int32_t>>(bytes_of_value(std::vector<std::byte>(3)))));
  EXPECT_FALSE((value_of<std::optional<int>>(bytes_of_value(std::pair<int, int>()))));
  EXPECT_FALSE((value_of<std::tuple<int>>(bytes_of_value(std::pair<int, int>()))));
  EXPECT_FALSE((value_of<std::array<int, 3>>(bytes_of_value(std::array<int, 2>()))));
  EXPECT_FALSE((value_of<std::variant<int, bool>>(bytes_of_value(std::pair<int, int>{2, 1}))));
  using Twice = std::array<int, 4>;  // a map that has one key two times
  EXPECT_FALSE((value_of<std::map<int, int>>(bytes_of_value(Twice{1, 2, 1, 2}))));
  EXPECT_FALSE((value_of<std::map<int, int>>(bytes_of_value(std::array<int, 3>{1, 2, 3}))));
}

TEST(Object, BytesLeftOverOrMissingAreNoValue) {
  const Buffer whole = bytes_of_value(rich_example());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(value_of<Rich>(ByteView(whole).first(size)));
  Buffer longer = whole;
  longer.push_back(std::byte{0xC0});
  EXPECT_FALSE(value_of<Rich>(longer));
}

// Lists in lists, each of which says that it has 4 thousand million items.
TEST(Object, ALengthThatIsNotThereCostsNothing) {
  Buffer bytes;
  for (int i = 0; i < 100; ++i) {
    for (const int byte : {0xDD, 0xFF, 0xFF, 0xFF, 0xFF}) bytes.push_back(static_cast<std::byte>(byte));
  }
  EXPECT_FALSE((value_of<std::vector<std::vector<std::string>>>(bytes)));
  for (const int first : {0xC6, 0xDB, 0xDF, 0xC9}) {  // bytes, text, map, extension
    bytes[0] = static_cast<std::byte>(first);
    EXPECT_FALSE(value_of<std::string>(bytes));
    EXPECT_FALSE(value_of<std::vector<std::byte>>(bytes));
  }
}

TEST(Object, WhatIsTooDeepIsKnownToTheWriter) {
  Tree tree{0, {}};
  const auto depth_of = [](int levels) {
    Tree root;
    for (int i = 1; i < levels; ++i) root = Tree{0, {root}};
    return root;
  };
  Writer fits;
  Codec<Tree>::write(fits, depth_of(kMaxDepth / 2));  // two lists for each level
  EXPECT_TRUE(fits.readable());
  Writer deep;
  Codec<Tree>::write(deep, depth_of(kMaxDepth / 2 + 1));
  EXPECT_FALSE(deep.readable());
  EXPECT_FALSE(value_of<Tree>(deep.written()));
}

TEST(Object, AttachmentsAreFoundByNumber) {
  Writer out;
  out.list(2);
  out.attach(std::string("first"));
  out.attach(2);
  Document document(out.written(), out.attached());
  EXPECT_EQ(std::any_cast<std::string>(*document.root().item(0).attachment()), "first");
  EXPECT_EQ(std::any_cast<int>(*document.root().item(1).attachment()), 2);
  EXPECT_TRUE(document.ok());
  Document fewer(out.written(), {out.attached()[0]});
  EXPECT_EQ(fewer.root().item(1).attachment(), nullptr);
  EXPECT_FALSE(fewer.ok());
}

Buffer example_envelope(ByteView value) {
  return write_envelope({.schema = schema_of<Rich>(),
                         .tensors = {{.type = 6, .sizes = {2, 3}}, {.type = 0}, {.type = 1, .sizes = {0}}},
                         .value = value});
}

TEST(Envelope, IsReadAsItWasWritten) {
  const Buffer value = bytes_of_value(rich_example());
  const Buffer bytes = example_envelope(value);
  const auto envelope = parse_envelope(bytes);
  ASSERT_TRUE(envelope);
  EXPECT_EQ(envelope->schema, schema_of<Rich>());
  EXPECT_THAT(envelope->tensors,
              ElementsAre(TensorHeader{6, {2, 3}}, TensorHeader{0, {}}, TensorHeader{1, {0}}));
  EXPECT_EQ(value_of<Rich>(envelope->value), rich_example());
}

TEST(Envelope, TensorsOfImpossibleSizesAreRefused) {
  EXPECT_TRUE(acceptable({.sizes = {kMaxTensorElements}}));
  EXPECT_TRUE(acceptable({.sizes = {0, 1 << 20, 1 << 20}}));
  EXPECT_FALSE(acceptable({.sizes = {kMaxTensorElements + 1}}));
  EXPECT_FALSE(acceptable({.sizes = {0, kMaxTensorElements, 2}}));
  EXPECT_FALSE(acceptable({.sizes = {std::numeric_limits<std::int64_t>::max(), 4}}));
  EXPECT_FALSE(acceptable({.sizes = {-1}}));
  EXPECT_FALSE(acceptable({.sizes = std::vector<std::int64_t>(kMaxTensorDims + 1, 1)}));
  EXPECT_FALSE(parse_envelope(write_envelope({.tensors = {{.sizes = {1, -1}}}})));
}

TEST(Envelope, AnotherVersionOrACutOneIsRefused) {
  Buffer bytes = example_envelope({});
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(parse_envelope(ByteView(bytes).first(size)));
  bytes[0] = std::byte{2};
  EXPECT_FALSE(parse_envelope(bytes));
}

TEST(Envelope, MutationsAreReadOrRefused) {
  std::mt19937 random(7);  // the same every time
  const Buffer value = bytes_of_value(rich_example());
  const Buffer whole = example_envelope(value);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    Buffer bytes = whole;
    for (int changes = 0; changes <= i % 4; ++changes) bytes[random() % bytes.size()] = std::byte(random());
    const auto envelope = parse_envelope(bytes);
    if (!envelope || !value_of<Rich>(envelope->value)) ++refused;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 20000);  // a letter of a text may be another
}

}  // namespace
}  // namespace lockstep::object
