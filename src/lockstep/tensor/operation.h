// An Operation is one call of the user's on tensors, from its arguments to the backend. Internal.
//
// First every argument is named and checked; then issue() looks at all of them together, and only then are
// bytes staged and the call given to the backend. So a wrong call sends nothing and changes nothing.
// Tensors and lists of sizes are borrowed until issue() returns.
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "lockstep/backend/rounds.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/call.h"
#include "lockstep/tensor/detail_checks.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/group_state.h"
#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/reduction.h"
#include "lockstep/tensor/work_handle.h"

namespace lockstep::tensor {

class Buffers;

// "tensor", "tensor_list[2]", "output_tensor_lists[2][0]".
struct Argument {
  const char* name = "";
  int index = -1;
  int inner = -1;
  std::string text() const {
    const std::string outer = index < 0 ? std::string(name) : cat(name, '[', index, ']');
    return inner < 0 ? outer : cat(outer, '[', inner, ']');
  }
};

// Both ways in which a caller may name a root or peer.
struct RootArguments {
  const char* name;  // "src"
  Argument of = {};  // what has it, where it is one of a list
  std::optional<int> global = {};
  std::optional<int> group = {};
  std::optional<int> fallback = {};  // global; nothing: one of the two must be given
};

// How the operation is to run.
struct Issue {
  bool async_op = false;
  std::optional<Duration> timeout = {};
};

class Operation {
 public:
  // InvalidArgument before init_process_group(). Warns if this rank is no member: then member() is false, and
  // nothing else is to be called.
  Operation(const char* call, const ProcessGroup& group);

  bool member() const { return state_->is_member(); }
  int rank() const { return state_->rank(); }
  int size() const { return state_->size(); }
  const std::shared_ptr<GroupState>& state() const { return state_; }
  const char* call() const { return call_; }

  // Its rank in the group. InvalidArgument for both forms, none where one is needed, or one that is no
  // member.
  int root(const RootArguments& root) const;

  // Each tensor is checked when it is named. One may be cut into parts along its elements: equal ones, or of
  // the given numbers of elements.
  void input(const at::Tensor& tensor, Argument argument) { add(tensor, argument, Role::kInput); }
  void output(const at::Tensor& tensor, Argument argument) { add(tensor, argument, Role::kOutput); }
  void in_place(const at::Tensor& tensor, Argument argument) { add(tensor, argument, Role::kInPlace); }
  // Read, and overwritten with the result.
  void input_and_output(const at::Tensor& tensor, Argument argument) { add(tensor, argument, Role::kBoth); }
  void cut(int equal_parts) { entries_.back().equal_parts = equal_parts; }
  void cut(std::span<const std::int64_t> elements) { entries_.back().parts = elements; }

  // Throws for a tensor that no operation can take. Is called for each that is named; alone, for one that is
  // looked at before.
  void check_tensor(const at::Tensor& tensor, const Argument& argument) const;
  // How many tensors were named, and back to so many.
  std::size_t count() const { return entries_.size(); }
  void truncate(std::size_t count) { entries_.resize(count); }

  // kInvalid in words: throws "rank 2: all_gather: ...".
  template <typename... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    throw_refused(cat(what...));
  }
  // OutOfResources, before anything was sent: "there is no memory for ...".
  [[noreturn]] void throw_no_memory(const std::string& what) const;
  // Throws for one below zero.
  void check_timeout(std::optional<Duration> timeout) const;
  // Throws unless the list has this many tensors.
  void check_length(const char* argument, std::size_t length, std::size_t wanted) const;

  WorkHandle issue(OpKind kind, int root, const Reduction& reduction, const Issue& how);
  WorkHandle issue(OpKind kind, int root, const Issue& how) { return issue(kind, root, {}, how); }
  WorkHandle issue(OpKind kind, const Issue& how) { return issue(kind, 0, {}, how); }
  // Several collectives as one operation, on what was named. `keep` keeps what they refer to, `written` is
  // what they write. With a backend that has no rounds it is done when this returns, also with async_op.
  WorkHandle issue_rounds(Rounds rounds, std::shared_ptr<const void> keep, const at::Tensor& written,
                          const Issue& how);

  // As Call::purpose: of what is issued after this.
  void set_purpose(std::uint64_t purpose) { purpose_ = purpose; }
  std::uint64_t purpose() const { return purpose_; }

  // Whether all that debugging can check is checked.
  bool in_detail() const { return state_->watch()->level() == DebugLevel::kDetail; }
  // Whether all ranks' results of such an operation are to be compared.
  bool compares(OpKind kind) const;
  // That of the call; nothing below detail.
  CallStack stack() const { return in_detail() ? stack_here() : nullptr; }
  // At detail: throws for an input with NaN in it, and ends the group, so that nobody waits for this rank.
  void check_nan(Backend& backend) const;
  c10::SmallVector<const at::Tensor*, 8> tensors() const;

  // Alone, for operations that are not collectives: looks at all arguments together.
  void check_together() const;
  DType dtype() const { return dtype_; }
  c10::DeviceType device() const { return device_; }
  OpOptions options(const Issue& how) const;
  [[noreturn]] void throw_status(const Status& status) const;

 private:
  enum class Role : std::uint8_t { kInput, kOutput, kInPlace, kBoth };
  struct Entry {
    const at::Tensor* tensor = nullptr;
    Argument argument = {};
    Role role = Role::kInput;
    int equal_parts = 1;
    std::span<const std::int64_t> parts = {};
  };
  struct Spans;
  struct Compared;

  void add(const at::Tensor& tensor, Argument argument, Role role);
  void lay_out(Buffers& buffers, Spans& spans) const;
  // Backend::run() and start(), or the like, watched.
  template <typename Body>
  void run(Backend& backend, const Body& body) const;
  template <typename Begin>
  backend::WorkPtr start(Backend& backend, const Begin& begin) const;
  WorkHandle handle_of(backend::WorkPtr work, std::shared_ptr<Buffers> buffers) const;
  [[noreturn]] void throw_refused(const std::string& what) const;

  const char* const call_;
  const std::shared_ptr<GroupState> state_;  // shared: the caller may let go of the group meanwhile
  c10::SmallVector<Entry, 2> entries_;
  DType dtype_ = DType::kUint8;
  c10::DeviceType device_ = c10::DeviceType::CPU;
  std::uint64_t purpose_ = 0;
};

// Nothing for a type that does not travel.
std::optional<DType> dtype_of(at::ScalarType type);
// Of a type that dtype_of() has none for: "Float4_e2m1fn_x2, which cannot travel: " and what to do instead.
std::string no_dtype_text(at::ScalarType type);
// "[2, 3]".
std::string shape_text(at::IntArrayRef shape);
inline std::string shape_text(const at::Tensor& tensor) { return shape_text(tensor.sizes()); }

}  // namespace lockstep::tensor
