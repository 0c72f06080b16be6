// How values travel between the ranks of a group: the part of the object collectives that knows no types.
//
// A value's bytes and the shapes of its tensors go first; then the tensors, each from where it lies to where
// it is wanted, as raw bytes. So an object collective is two or three collectives of the group.
// What a rank receives and cannot use (another type, say) it still receives whole, so that the group lives
// on. Bytes that no rank of ours sends end the group. Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/collective/call.h"
#include "lockstep/object/codec.h"
#include "lockstep/object/envelope.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::tensor {

class Operation;

// A value of another type came than was wanted. The group lives on.
class ObjectTypeError : public InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

// A value that is ready to travel.
struct OutgoingObject {
  Buffer envelope;
  std::vector<at::Tensor> tensors;  // plain, on the CPU
};

// A value that has come.
struct IncomingObject {
  int from = 0;      // global rank
  at::Tensor bytes;  // what `envelope` points into
  object::Envelope envelope = {};
  std::vector<at::Tensor> tensors = {};
};

class ObjectExchange {
 public:
  // Warns if this rank is no member: then member() is false, and nothing else is to be called.
  ObjectExchange(const char* call, const ProcessGroup& group, std::optional<Duration> timeout);

  ~ObjectExchange();
  ObjectExchange(const ObjectExchange&) = delete;
  ObjectExchange& operator=(const ObjectExchange&) = delete;

  bool member() const;
  int rank() const;
  int size() const;
  // A rank in the group, from the two ways in which the caller may name it. InvalidArgument.
  int source(std::optional<int> src, std::optional<int> group_src) const;
  int destination(std::optional<int> dst, std::optional<int> group_dst) const;
  // InvalidArgument, in the name of the call.
  template <typename... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    throw_refused(cat(what...));
  }

  // InvalidArgument for a value that cannot travel.
  template <object::Sendable T>
  OutgoingObject pack(const T& value) const {
    object::Writer out;
    object::Codec<T>::write(out, value);
    return pack(object::schema_of<T>(), out);
  }
  // ObjectTypeError, or CorruptFrame for what is no value of the type that it says.
  template <object::Sendable T>
  T unpack(const IncomingObject& incoming) const {
    check_type(incoming, object::schema_of<T>());
    object::Document document(incoming.envelope.value,
                              std::vector<std::any>(incoming.tensors.begin(), incoming.tensors.end()));
    T value = object::Codec<T>::read(document.root());
    if (!document.ok()) throw_corrupt(incoming.from);
    return value;
  }
  // The list becomes what has come: if it is not empty, it must be as long. InvalidArgument.
  template <object::Sendable T>
  void fill(std::vector<T>& list, const IncomingObject& incoming) const {
    std::vector<T> objects = unpack<std::vector<T>>(incoming);
    if (!list.empty() && list.size() != objects.size()) {
      refuse("object_list has ", list.size(), " objects, but rank ", incoming.from, " has sent ",
             objects.size(), ".");
    }
    list = std::move(objects);
  }

  // By rank in the group.
  std::vector<IncomingObject> all_gather(const OutgoingObject& own) const { return collect(own, {}); }
  // The same on the root; elsewhere nothing. Roots are ranks in the group.
  std::vector<IncomingObject> gather(const OutgoingObject& own, int root) const { return collect(own, root); }
  void broadcast(const OutgoingObject& own) const;
  IncomingObject receive_broadcast(int root) const;
  // `parts` on the root, one for each rank; elsewhere none.
  IncomingObject scatter(const std::vector<OutgoingObject>& parts, int root) const;
  void send(const OutgoingObject& own, SendOptions options) const;
  IncomingObject receive(RecvOptions options) const;

 private:
  OutgoingObject pack(const std::string& schema, const object::Writer& out) const;
  void check_type(const IncomingObject& incoming, const std::string& wanted) const;
  std::vector<IncomingObject> collect(const OutgoingObject& own, std::optional<int> to) const;
  // What goes first: the size of an envelope, and how many tensors come at most.
  static at::Tensor announcement(std::size_t envelope, std::size_t tensors);
  // Room for an envelope; then, once its bytes are there, what it says, and room for its tensors.
  IncomingObject expect(int from, const at::Tensor& announced) const;
  void open(IncomingObject& incoming, std::int64_t most_tensors) const;
  // One collective of the group.
  void run(OpKind kind, int root, const Tensors& inputs, const Tensors& outputs) const;
  std::optional<Duration> left() const;
  int own_global() const;
  int global(int group_rank) const;
  [[noreturn]] void throw_refused(const std::string& what) const;
  Status corrupt(int from) const;
  [[noreturn]] void throw_corrupt(int from) const;
  // The others would wait for what this rank cannot take part in any more.
  [[noreturn]] void end_group(const Status& why) const;

  const ProcessGroup group_;
  const std::unique_ptr<const Operation> op_;  // what checks and names the call; sends nothing itself
  const std::optional<Deadline> deadline_;
};

}  // namespace lockstep::tensor

template <>
struct lockstep::object::Codec<at::Tensor> {
  static void describe(Description& description) { description.text("tensor"); }
  static void write(Writer& out, const at::Tensor& value) {
    if (value.defined()) {
      out.attach(value);
    } else {
      out.nothing();
    }
  }
  static at::Tensor read(const Reader& in) {
    if (in.is_nothing()) return {};
    const std::any* attached = in.attachment();
    return attached == nullptr ? at::Tensor() : std::any_cast<const at::Tensor&>(*attached);
  }
};

namespace lockstep {
using tensor::ObjectTypeError;
}
