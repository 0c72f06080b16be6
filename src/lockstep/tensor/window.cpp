#include "lockstep/tensor/window.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/operation.h"
#include "lockstep/tensor/resident_blocks.h"
#include "lockstep/tensor/shapes.h"
#include "lockstep/tensor/window_state.h"

namespace lockstep::tensor {
namespace {

at::Tensor empty_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::from_blob(nullptr, sizes, at::TensorOptions().dtype(dtype));
}

// Of this rank's own part.
at::Tensor own_tensor(SharedMemory memory, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (memory.bytes.empty()) return empty_of(sizes, dtype);
  void* const data = memory.bytes.data();
  ResidentBlocks::all().add(data, std::move(memory.owner), current_session("Window"));
  return at::from_blob(
      data, sizes, [](void* block) { (void)ResidentBlocks::all().remove(block); },
      at::TensorOptions().dtype(dtype));
}

at::Tensor mapped_tensor(const SharedMemory& memory, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (memory.bytes.empty()) return empty_of(sizes, dtype);
  return at::from_blob(
      memory.bytes.data(), sizes, [owner = memory.owner](void*) {}, at::TensorOptions().dtype(dtype));
}

// One call on a window, whose peer is known.
class Access {
 public:
  // `root` names the peer, and whether it is a source or a destination.
  Access(const char* call, const ProcessGroup& group, const std::shared_ptr<WindowState>& state,
         const RootArguments& root, std::optional<Duration> timeout)
      : op_(call, group) {
    if (!op_.member()) return;
    peer_ = Rank{op_.root(root)};
    window_ = state->window(call);
    options_ = op_.options({.timeout = timeout});
  }

  bool member() const { return op_.member(); }
  backend::Window& window() const { return *window_; }
  Operation& op() { return op_; }
  const Operation& op() const { return op_; }
  Rank peer() const { return peer_; }
  const OpOptions& options() const { return options_; }
  void finish(const Status& status) const {
    if (!status.ok()) op_.throw_status(status);
  }
  // Where the elements of `tensor` begin in the peer's bytes.
  std::uint64_t offset(const at::Tensor& tensor, const at::Tensor& own, std::int64_t elements) const {
    if (tensor.scalar_type() != own.scalar_type()) {
      op_.refuse("tensor is of type ", c10::toString(tensor.scalar_type()), ", but the window is of type ",
                 c10::toString(own.scalar_type()), ".");
    }
    const std::int64_t size = static_cast<std::int64_t>(window_->size_of(peer_).value) / own.element_size();
    if (elements < 0 || elements > size || tensor.numel() > size - elements) {
      op_.refuse("the ", tensor.numel(), " elements of tensor do not fit at offset ", elements,
                 " of the window's ", size, " of rank ",
                 op_.state()->ranks()[static_cast<std::size_t>(peer_.value)], ".");
    }
    return static_cast<std::uint64_t>(elements * own.element_size());
  }

 private:
  Operation op_;
  Rank peer_{0};
  std::shared_ptr<backend::Window> window_;
  OpOptions options_;
};

}  // namespace

std::shared_ptr<backend::Window> WindowState::window(const char* call) const {
  {
    const MutexLock lock(mutex_);
    if (window_) return window_;
  }
  const Rank at{group_->global_rank()};
  throw_error(Status::invalid(cat("rank ", at, ": ", call, ": the world of the window was left."),
                              {.failure = Failure::kClosed, .op = call, .group = group_->name()}),
              at);
}

void WindowState::close() {
  std::shared_ptr<backend::Window> taken;  // let go of with no lock held
  {
    const MutexLock lock(mutex_);
    taken = std::exchange(window_, nullptr);
  }
  if (taken && taken.use_count() > 1) {
    taken->group().abort(Status::aborted("a window was destroyed while it was used",
                                         {.failure = Failure::kClosed, .group = group_->name()}));
  }
}

Window::Window(at::IntArrayRef sizes, at::ScalarType dtype, const WindowOptions& options)
    : group_(options.group) {
  const Operation op("Window", options.group);
  if (!op.member()) return;
  if (!dtype_of(dtype)) op.refuse("dtype is ", no_dtype_text(dtype));
  const auto element_size = static_cast<std::int64_t>(c10::elementSize(dtype));
  if (const std::string problem = shape_problem(sizes, element_size); !problem.empty())
    op.refuse("sizes: ", problem);
  const auto bytes = static_cast<std::uint64_t>(element_size * c10::multiply_integers(sizes));
  group_ = ProcessGroup(op.state());
  op.check_timeout(options.timeout);
  state_ = current_session("Window")->make_window("Window", op.state(), Bytes{bytes}, options.timeout);
  tensor_ = own_tensor(state_->window("Window")->memory(), sizes, dtype);
}

Window::~Window() {
  if (state_) state_->close();
}
Window::Window(Window&&) noexcept = default;
Window& Window::operator=(Window&& other) noexcept {
  Window old(std::move(*this));
  group_ = std::move(other.group_);
  tensor_ = std::move(other.tensor_);
  state_ = std::move(other.state_);
  return *this;
}

void Window::put(const at::Tensor& tensor, const PutOptions& options) const {
  Access access("put", group_, state_, {.name = "dst", .global = options.dst, .group = options.group_dst},
                options.timeout);
  if (!access.member()) return;
  access.op().input(tensor, {"tensor"});
  const std::uint64_t offset = access.offset(tensor, tensor_, options.offset);
  Buffers buffers;
  access.finish(access.window().put(access.peer(), offset, buffers.input(tensor), access.options()));
}

void Window::get(const at::Tensor& tensor, const GetOptions& options) const {
  Access access("get", group_, state_, {.name = "src", .global = options.src, .group = options.group_src},
                options.timeout);
  if (!access.member()) return;
  access.op().output(tensor, {"tensor"});
  const std::uint64_t offset = access.offset(tensor, tensor_, options.offset);
  Buffers buffers;
  access.finish(access.window().get(access.peer(), offset, buffers.output(tensor), access.options()));
  buffers.finish();
}

void Window::signal(const SignalOptions& options) const {
  const Access access("signal", group_, state_,
                      {.name = "dst", .global = options.dst, .group = options.group_dst}, options.timeout);
  if (access.member()) access.finish(access.window().signal(access.peer(), access.options()));
}

void Window::wait_signal(const WaitSignalOptions& options) const {
  const Access access("wait_signal", group_, state_,
                      {.name = "src", .global = options.src, .group = options.group_src}, options.timeout);
  if (access.member()) access.finish(access.window().wait_signal(access.peer(), access.options()));
}

at::Tensor Window::map(const MapOptions& options) const {
  const Access access("map", group_, state_,
                      {.name = "src", .global = options.src, .group = options.group_src}, {});
  if (!access.member()) return {};
  if (access.peer().value == access.op().rank()) return tensor_.view({-1});
  const auto memory = access.window().map(access.peer());
  access.finish(memory.status());
  const std::int64_t count = static_cast<std::int64_t>(memory->bytes.size()) / tensor_.element_size();
  return mapped_tensor(*memory, {count}, tensor_.scalar_type());
}

}  // namespace lockstep::tensor
