#include "lockstep/object/archive.h"

#include <exception>
#include <msgpack.hpp>
#include <utility>

namespace lockstep::object {
namespace {

// Where msgpack's packer writes to.
class Sink {
 public:
  explicit Sink(Buffer& out) : out_(out) {}
  void write(const char* data, std::size_t size) {
    const ByteView bytes = bytes_of(std::string_view(data, size));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }

 private:
  Buffer& out_;
};

template <typename Pack>
void pack_to(Buffer& out, const Pack& pack) {
  Sink sink(out);
  msgpack::packer<Sink> packer(sink);
  pack(packer);
}

const char* characters(ByteView bytes) { return text_of(bytes).data(); }

// Looks at everything and allocates nothing: lengths that the bytes do not have end it.
class Checker : public msgpack::null_visitor {
 public:
  bool start_array(std::uint32_t /*count*/) { return ++depth_ <= kMaxDepth; }
  bool end_array() {
    --depth_;
    return true;
  }
  bool start_map(std::uint32_t /*count*/) { return false; }
  bool visit_ext(const char* /*data*/, std::uint32_t /*size*/) { return false; }

 private:
  int depth_ = 0;
};

bool well_formed(ByteView bytes) {
  Checker checker;
  std::size_t end = 0;
  return !bytes.empty() && msgpack::parse(characters(bytes), bytes.size(), end, checker) &&
         end == bytes.size();
}

const msgpack::object* object_at(const void* place) { return static_cast<const msgpack::object*>(place); }

}  // namespace

bool Writer::fits(std::size_t length) {
  too_long_ = too_long_ || length > kMaxLength;
  return !too_long_;
}

void Writer::nothing() {
  pack_to(written_, [](auto& packer) { packer.pack_nil(); });
}
void Writer::boolean(bool value) {
  pack_to(written_, [value](auto& packer) { value ? packer.pack_true() : packer.pack_false(); });
}
void Writer::integer(std::int64_t value) {
  pack_to(written_, [value](auto& packer) { packer.pack_int64(value); });
}
void Writer::natural(std::uint64_t value) {
  pack_to(written_, [value](auto& packer) { packer.pack_uint64(value); });
}

void Writer::text(std::string_view value) {
  if (!fits(value.size())) return;
  pack_to(written_, [value](auto& packer) {
    const auto size = static_cast<std::uint32_t>(value.size());
    packer.pack_str(size).pack_str_body(value.data(), size);
  });
}

void Writer::bytes(ByteView value) {
  if (!fits(value.size())) return;
  pack_to(written_, [value](auto& packer) {
    const auto size = static_cast<std::uint32_t>(value.size());
    packer.pack_bin(size).pack_bin_body(characters(value), size);
  });
}

void Writer::list(std::size_t count) {
  if (!fits(count)) return;
  pack_to(written_, [count](auto& packer) { packer.pack_array(static_cast<std::uint32_t>(count)); });
}

void Writer::attach(std::any value) {
  natural(attached_.size());
  attached_.push_back(std::move(value));
}

bool Writer::readable() const { return !too_long_ && well_formed(written_); }

struct Document::Tree {
  msgpack::zone memory;
  msgpack::object root;
};

Document::Document(ByteView bytes, std::vector<std::any> attached)
    : attached_(std::move(attached)), tree_(std::make_unique<Tree>()) {
  if (!well_formed(bytes)) return;
  const auto borrow = [](msgpack::type::object_type, std::size_t, void*) { return true; };
  try {
    tree_->root = msgpack::unpack(tree_->memory, characters(bytes), bytes.size(), borrow);
    ok_ = true;
  } catch (const std::exception&) {
    ok_ = false;  // out of memory, for what is left to go wrong
  }
}

Document::~Document() = default;

Reader Document::root() { return {*this, ok_ ? &tree_->root : nullptr}; }

void Reader::fail() const { document_->ok_ = false; }

bool Reader::is_nothing() const { return place_ == nullptr || object_at(place_)->type == msgpack::type::NIL; }

bool Reader::boolean() const {
  const msgpack::object* object = object_at(place_);
  if (object != nullptr && object->type == msgpack::type::BOOLEAN) return object->via.boolean;
  fail();
  return false;
}

std::int64_t Reader::integer_within(std::int64_t lowest, std::int64_t highest) const {
  const msgpack::object* object = object_at(place_);
  if (object != nullptr && object->type == msgpack::type::NEGATIVE_INTEGER && object->via.i64 >= lowest)
    return object->via.i64;
  if (object != nullptr && object->type == msgpack::type::POSITIVE_INTEGER &&
      object->via.u64 <= static_cast<std::uint64_t>(highest))
    return static_cast<std::int64_t>(object->via.u64);
  fail();
  return 0;
}

std::uint64_t Reader::natural_within(std::uint64_t highest) const {
  const msgpack::object* object = object_at(place_);
  if (object != nullptr && object->type == msgpack::type::POSITIVE_INTEGER && object->via.u64 <= highest)
    return object->via.u64;
  fail();
  return 0;
}

std::string_view Reader::text() const {
  const msgpack::object* object = object_at(place_);
  if (object != nullptr && object->type == msgpack::type::STR)
    return {object->via.str.ptr, object->via.str.size};
  fail();
  return {};
}

ByteView Reader::bytes() const {
  const msgpack::object* object = object_at(place_);
  if (object != nullptr && object->type == msgpack::type::BIN)
    return bytes_of(std::string_view(object->via.bin.ptr, object->via.bin.size));
  fail();
  return {};
}

std::size_t Reader::list() const {
  const msgpack::object* object = object_at(place_);
  if (object != nullptr && object->type == msgpack::type::ARRAY) return object->via.array.size;
  fail();
  return 0;
}

Reader Reader::item(std::size_t index) const {
  const msgpack::object* object = object_at(place_);
  if (object != nullptr && object->type == msgpack::type::ARRAY && index < object->via.array.size)
    return {*document_, object->via.array.ptr + index};
  fail();
  return {*document_, nullptr};
}

const std::any* Reader::attachment() const {
  const auto index = integer<std::uint64_t>();
  if (document_->ok_ && index < document_->attached_.size()) return &document_->attached_[index];
  fail();
  return nullptr;
}

}  // namespace lockstep::object
