// A value as bytes: what the Codec of a type (codec.h) writes to and reads from. The bytes are MessagePack.
//
// What is large and lies elsewhere, as a tensor does, is attached: the bytes have its number, and it travels
// beside them.
//
// Thread safety: one thread at a time.
// Does not: know types. Bytes that follow no type are found by the Codec, which asks for what it expects.
#pragma once

#include <any>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::object {

// How deep lists may lie in lists.
constexpr int kMaxDepth = 128;
// Of a text, bytes or list: MessagePack's own limit.
constexpr std::size_t kMaxLength = std::numeric_limits<std::uint32_t>::max();

class Writer {
 public:
  void nothing();
  void boolean(bool value);
  void integer(std::int64_t value);
  void natural(std::uint64_t value);
  // As its bits: MessagePack's own would lose the sign of a zero here, where it makes a whole number of it.
  void real(float value) { natural(std::bit_cast<std::uint32_t>(value)); }
  void real(double value) { natural(std::bit_cast<std::uint64_t>(value)); }
  void text(std::string_view value);
  void bytes(ByteView value);
  // So many values follow, which are its items.
  void list(std::size_t count);
  void attach(std::any value);

  // Whether what was written can be read: nothing is too long, or nested too deeply.
  bool readable() const;
  const Buffer& written() const { return written_; }
  const std::vector<std::any>& attached() const { return attached_; }

 private:
  bool fits(std::size_t length);

  Buffer written_;
  std::vector<std::any> attached_;
  bool too_long_ = false;
};

class Reader;

// The bytes of one value, taken apart. They are looked through before anything is allocated for them, so that
// a length that they do not have costs nothing; what is allocated then is at most some 30 times their size.
class Document {
 public:
  // Borrows the bytes.
  Document(ByteView bytes, std::vector<std::any> attached);
  ~Document();
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;

  // False once a Reader has met what it did not expect; also if the bytes are no MessagePack at all, have
  // something left over, or what Writer never writes.
  bool ok() const { return ok_; }
  Reader root();

 private:
  friend class Reader;
  struct Tree;

  const std::vector<std::any> attached_;
  std::unique_ptr<Tree> tree_;
  bool ok_ = false;
};

// One place in a Document, which outlives it. What is not what was asked for gives zero or an empty value,
// and the Document is no longer ok(): a Codec reads everything, and whoever called it asks once.
class Reader {
 public:
  bool is_nothing() const;
  bool boolean() const;
  // Within the range of the type.
  template <typename T>
    requires std::is_integral_v<T>
  T integer() const {
    if constexpr (std::is_signed_v<T>) {
      return static_cast<T>(integer_within(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    } else {
      return static_cast<T>(natural_within(std::numeric_limits<T>::max()));
    }
  }
  float real32() const { return std::bit_cast<float>(integer<std::uint32_t>()); }
  double real64() const { return std::bit_cast<double>(integer<std::uint64_t>()); }
  std::string_view text() const;
  ByteView bytes() const;
  std::size_t list() const;  // how many items
  Reader item(std::size_t index) const;
  // Null if there is none.
  const std::any* attachment() const;
  // What was read makes no sense to the type.
  void fail() const;

 private:
  friend class Document;
  Reader(Document& document, const void* place) : document_(&document), place_(place) {}
  std::int64_t integer_within(std::int64_t lowest, std::int64_t highest) const;
  std::uint64_t natural_within(std::uint64_t highest) const;

  Document* document_;
  const void* place_;  // null after a failure
};

}  // namespace lockstep::object
