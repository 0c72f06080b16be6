#include "lockstep/tensor/resident.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/logger.h"
#include "lockstep/tensor/resident_blocks.h"
#include "lockstep/tensor/shapes.h"

namespace lockstep::tensor {
namespace {

thread_local ResidentScope* t_scope = nullptr;

void free_block(void* data) { (void)ResidentBlocks::all().remove(data); }

Result<c10::DataPtr> allocate_in(const std::shared_ptr<Session>& session, std::size_t size) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (size == 0) return c10::DataPtr(nullptr, cpu);
  LOCKSTEP_ASSIGN(SharedMemory memory, session->allocate(Bytes{size}));
  void* const data = memory.bytes.data();
  ResidentBlocks::all().add(data, std::move(memory.owner), session);
  return c10::DataPtr(data, data, &free_block, cpu);
}

// Of the tensors of empty_resident(), which stay resident when they are resized.
class ResidentAllocator final : public c10::Allocator {
 public:
  static ResidentAllocator* only() {
    static ResidentAllocator* const allocator = new ResidentAllocator;
    return allocator;
  }
  c10::DataPtr allocate(std::size_t size) override {
    const std::shared_ptr<Session> session = current_session("empty_resident");
    auto made = allocate_in(session, size);
    const Rank at{session->default_group()->rank()};
    if (!made.ok()) throw_error(made.status().with_prefix(cat("rank ", at, ": empty_resident: ")), at);
    return std::move(*made);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

// In front of torch's own: asks the thread's scope first.
class ScopedAllocator final : public c10::Allocator {
 public:
  // Null before install().
  static ScopedAllocator*& installed() {
    static ScopedAllocator* only = nullptr;
    return only;
  }
  static void install() {
    static std::once_flag once;
    std::call_once(once, [] {
      installed() = new ScopedAllocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(installed());
    });
    if (c10::GetCPUAllocator() == installed()) return;
    const Rank at{default_group("ResidentScope")->rank()};
    throw_error(Status::invalid(cat("rank ", at,
                                    ": ResidentScope: the program has set a CPU allocator of its own; make "
                                    "tensors with empty_resident() instead.")),
                at);
  }

  c10::DataPtr allocate(std::size_t size) override {
    if (ResidentScope* const scope = ResidentScope::current()) {
      c10::DataPtr made = scope->allocate(size);
      if (made) return made;
    }
    return inner_->allocate(size);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    inner_->copy_data(to, from, count);
  }

 private:
  explicit ScopedAllocator(c10::Allocator* inner) : inner_(inner) {}
  static void free_any(void* data) {
    if (!ResidentBlocks::all().remove(data)) installed()->inner_->raw_deleter()(data);
  }

  c10::Allocator* const inner_;
};

// For empty_resident() and zeros_resident(), which `call` says.
at::Tensor make_resident(const char* call, at::IntArrayRef sizes, const at::TensorOptions& options) {
  const Rank at{default_group(call)->rank()};
  const auto refuse = [&](const auto&... what) {
    throw_error(Status::invalid(cat("rank ", at, ": ", call, ": ", what...), {.rank = at, .op = call}), at);
  };
  if (options.device().type() != c10::DeviceType::CPU)
    refuse("options: a tensor on ", options.device().str(), " cannot be resident; only CPU tensors can.");
  if (options.layout() != at::kStrided) refuse("options: a sparse tensor cannot be resident.");
  if (options.pinned_memory()) refuse("options: a resident tensor cannot have pinned memory.");
  const auto element_size = static_cast<std::int64_t>(options.dtype().itemsize());
  if (const std::string problem = shape_problem(sizes, element_size); !problem.empty())
    refuse("sizes: ", problem);
  return at::Tensor(
      at::detail::empty_generic(sizes, ResidentAllocator::only(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                c10::typeMetaToScalarType(options.dtype()), options.memory_format_opt()));
}

}  // namespace

at::Tensor empty_resident(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor tensor = make_resident("empty_resident", sizes, options);
  if (options.requires_grad()) tensor.set_requires_grad(true);
  return tensor;
}

at::Tensor zeros_resident(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor tensor = make_resident("zeros_resident", sizes, options);
  tensor.zero_();
  if (options.requires_grad()) tensor.set_requires_grad(true);
  return tensor;
}

bool is_resident(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  return is_initialized() &&
         ResidentBlocks::all().is_of(tensor.storage().data(), current_session("is_resident"));
}

ResidentScope* ResidentScope::current() { return t_scope; }

ResidentScope::ResidentScope() : session_(current_session("ResidentScope")), outer_(t_scope) {
  ScopedAllocator::install();
  t_scope = this;
}

ResidentScope::~ResidentScope() { t_scope = outer_; }

c10::DataPtr ResidentScope::allocate(std::size_t size) {
  const std::shared_ptr<Session> session = session_.lock();
  Status why = Status::invalid("the world was left");
  if (session) {
    auto made = allocate_in(session, size);
    if (made.ok()) return std::move(*made);
    why = made.status();
  }
  if (!std::exchange(warned_, true)) {
    kLog.warn(cat("ResidentScope: a tensor of ", Bytes{size}, " is plain memory: ", why.message(),
                  ". Nothing is said of others."));
  }
  return {};
}

}  // namespace lockstep::tensor
