// Bytes: views, buffers, and the bounds-checked reader and writer that every wire format is built on.
//
// Integers on the wire are little-endian. A ByteReader never reads past its end and never allocates more than
// what is left in its input: a length field is checked against the rest before anything is made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lockstep::base {

using ByteView = std::span<const std::byte>;
using ByteSpan = std::span<std::byte>;
using Buffer = std::vector<std::byte>;

inline ByteView bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
inline ByteView bytes_of(const char* text) { return bytes_of(std::string_view(text)); }
inline ByteView bytes_of(const std::string& text) { return bytes_of(std::string_view(text)); }
template <typename T>
  requires std::is_trivially_copyable_v<T>
ByteView bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <typename T>
  requires std::is_trivially_copyable_v<T>
ByteSpan bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}
inline std::string_view text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Buffer buffer_of(std::string_view text) {
  const ByteView view = bytes_of(text);
  return {view.begin(), view.end()};
}

// Lower-case hexadecimal.
std::string hex(ByteView bytes);

// Appends to a buffer that the caller owns.
class ByteWriter {
 public:
  explicit ByteWriter(Buffer& out) : out_(out) {}

  template <typename T>
    requires std::is_integral_v<T>
  void integer(T value) {
    std::byte raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));  // the supported machines are little-endian
    out_.insert(out_.end(), raw, raw + sizeof(T));
  }
  void raw(ByteView bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  // A 32-bit length, then the bytes.
  void sized(ByteView bytes) {
    integer(static_cast<std::uint32_t>(bytes.size()));
    raw(bytes);
  }
  void sized(std::string_view text) { sized(bytes_of(text)); }

 private:
  Buffer& out_;
};

// Reads from a view that the caller keeps alive. After the first failure every read gives zero or empty and
// ok() is false, so a parser reads all its fields and asks once.
class ByteReader {
 public:
  explicit ByteReader(ByteView in) : in_(in) {}

  template <typename T>
    requires std::is_integral_v<T>
  T integer() {
    T value{};
    const ByteView raw = take(sizeof(T));
    if (ok_) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  // A view into the input; empty after a failure.
  ByteView take(std::size_t count) {
    if (!ok_ || count > in_.size()) {
      ok_ = false;
      in_ = {};
      return {};
    }
    const ByteView out = in_.first(count);
    in_ = in_.subspan(count);
    return out;
  }
  // A 32-bit length, then the bytes; a length above `limit` or above the rest is a failure.
  ByteView sized(std::size_t limit) {
    const auto count = integer<std::uint32_t>();
    if (count > limit) {
      ok_ = false;
      in_ = {};
      return {};
    }
    return take(count);
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return in_.size(); }
  // Everything was read, and nothing was left over.
  bool complete() const { return ok_ && in_.empty(); }

 private:
  ByteView in_;
  bool ok_ = true;
};

}  // namespace lockstep::base

namespace lockstep {
using base::Buffer;
using base::buffer_of;
using base::bytes_of;
using base::ByteSpan;
using base::ByteView;
using base::text_of;
}  // namespace lockstep
