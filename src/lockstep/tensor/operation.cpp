#include "lockstep/tensor/operation.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "lockstep/backend/held_call.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/detail_checks.h"
#include "lockstep/tensor/logger.h"
#include "lockstep/tensor/overlap.h"
#include "lockstep/tensor/watched.h"
#include "lockstep/tensor/work_state.h"

namespace lockstep::tensor {
namespace {

void append_parts(c10::SmallVectorImpl<ByteView>& out, ByteView bytes, int parts) {
  const std::size_t each = bytes.size() / static_cast<std::size_t>(parts);
  for (std::size_t i = 0; i < static_cast<std::size_t>(parts); ++i)
    out.push_back(bytes.subspan(i * each, each));
}
void append_parts(c10::SmallVectorImpl<ByteSpan>& out, ByteSpan bytes, int parts) {
  const std::size_t each = bytes.size() / static_cast<std::size_t>(parts);
  for (std::size_t i = 0; i < static_cast<std::size_t>(parts); ++i)
    out.push_back(bytes.subspan(i * each, each));
}

template <typename Out, typename Span>
void append_parts(Out& out, Span bytes, std::span<const std::int64_t> elements, std::size_t element_size) {
  std::size_t at = 0;
  for (const std::int64_t count : elements) {
    const std::size_t size = static_cast<std::size_t>(count) * element_size;
    out.push_back(bytes.subspan(at, size));
    at += size;
  }
}

std::string layout_text(at::Layout layout) {
  std::ostringstream out;
  out << layout;
  return std::move(out).str();
}

}  // namespace

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Bool:
      return DType::kBool;
    case at::ScalarType::Byte:
      return DType::kUint8;
    case at::ScalarType::Char:
      return DType::kInt8;
    case at::ScalarType::Short:
      return DType::kInt16;
    case at::ScalarType::Int:
      return DType::kInt32;
    case at::ScalarType::Long:
      return DType::kInt64;
    case at::ScalarType::UInt16:
      return DType::kUint16;
    case at::ScalarType::UInt32:
      return DType::kUint32;
    case at::ScalarType::UInt64:
      return DType::kUint64;
    case at::ScalarType::Half:
      return DType::kFloat16;
    case at::ScalarType::BFloat16:
      return DType::kBFloat16;
    case at::ScalarType::Float:
      return DType::kFloat32;
    case at::ScalarType::Double:
      return DType::kFloat64;
    case at::ScalarType::ComplexFloat:
      return DType::kComplex64;
    case at::ScalarType::ComplexDouble:
      return DType::kComplex128;
    default:
      break;
  }
  if (c10::isFloat8Type(type)) return DType::kFloat8;
  return std::nullopt;
}

std::string shape_text(at::IntArrayRef shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(cat(size));
  return cat('[', base::join(sizes), ']');
}

struct Operation::Spans {
  c10::SmallVector<ByteView, 8> inputs;
  c10::SmallVector<ByteSpan, 8> outputs;
};

Operation::Operation(const char* call, const ProcessGroup& group) : call_(call), state_(group.state(call)) {
  if (!member()) {
    kLog.warn(cat("rank ", default_group(call)->rank(), ": ", call,
                  " with a group that this rank is no member of does nothing."));
  }
}

void Operation::throw_refused(const std::string& what) const {
  throw_status(Status::invalid(what, {.op = call_, .group = state_->name()}).with_prefix(cat(call_, ": ")));
}

void Operation::throw_status(const Status& given) const {
  const Rank at{state_->global_rank()};
  const bool nameless = given.code() == Code::kInvalid && given.failure() == Failure::kNone;
  const Status named = nameless ? given.with_prefix(cat("rank ", at, ": ")) : given;
  if (!in_detail()) throw_error(named, at);
  throw_error(Status(named.code(), cat(named.message(), text_of(stack_here())), named.cause()), at);
}

void Operation::throw_no_memory(const std::string& what) const {
  const Rank at{state_->global_rank()};
  throw_status(Status::internal(
      cat("rank ", at, ": ", call_, ": there is no memory for ", what, ". Nothing was sent."),
      {.failure = Failure::kNoMemory, .rank = at, .op = call_, .group = state_->name()}));
}

void Operation::check_timeout(std::optional<Duration> timeout) const {
  if (timeout) tensor::check_timeout(call_, *timeout, Rank{state_->global_rank()});
}

void Operation::check_length(const char* argument, std::size_t length, std::size_t wanted) const {
  if (length != wanted) {
    refuse(argument, " has ", length, " tensors, but one for each of the ", wanted,
           " ranks of the group is needed.");
  }
}

int Operation::root(const RootArguments& root) const {
  // "src", "p2p_op_list[1].group_src".
  const auto called = [&](const char* form) {
    return cat(root.of.index < 0 ? "" : root.of.text() + ".", form, root.name);
  };
  if (root.global && root.group)
    refuse(called(""), " and ", called("group_"), " are both given; give one of them.");
  if (root.group) {
    if (*root.group < 0 || *root.group >= size()) {
      refuse(called("group_"), " is ", *root.group, ", but the group ", base::quoted(state_->name()), " has ",
             size(), " ranks.");
    }
    return *root.group;
  }
  const std::optional<int> global = root.global ? root.global : root.fallback;
  if (!global) refuse("neither ", called(""), " nor ", called("group_"), " is given.");
  const int found = state_->group_rank_of(*global);
  if (found < 0) {
    std::vector<Rank> ranks;
    for (const int rank : state_->ranks()) ranks.emplace_back(rank);
    std::sort(ranks.begin(), ranks.end());
    refuse(called(""), " is ", *global, ", but the group ", base::quoted(state_->name()),
           " has the global ranks ", base::ranks_text(ranks), ".");
  }
  return found;
}

std::string no_dtype_text(at::ScalarType type) {
  return cat(c10::toString(type), ", which cannot travel: ",
             c10::isQIntType(type) ? "dequantize() it first." : "send its bytes, viewed as uint8.");
}

void Operation::check_tensor(const at::Tensor& tensor, const Argument& argument) const {
  if (!tensor.defined()) refuse(argument.text(), " is an undefined tensor.");
  if (tensor.layout() != at::kStrided) {
    refuse(argument.text(), " has the layout ", layout_text(tensor.layout()),
           "; tensors travel strided, and in all_reduce also as sparse COO.");
  }
  if (!dtype_of(tensor.scalar_type())) {
    refuse(argument.text(), " is of type ", no_dtype_text(tensor.scalar_type()));
  }
}

void Operation::add(const at::Tensor& tensor, Argument argument, Role role) {
  check_tensor(tensor, argument);
  const DType dtype = *dtype_of(tensor.scalar_type());
  if (entries_.empty()) {
    dtype_ = dtype;
    device_ = tensor.device().type();
    if (!state_->takes(device_)) {
      refuse(argument.text(), " is on ", tensor.device().str(), ", but the group ",
             base::quoted(state_->name()), " has no backend for that; it has ", state_->config(), ".");
    }
    (void)state_->backend(call_, device_);
  } else {
    const Entry& first = entries_.front();
    if (tensor.scalar_type() != first.tensor->scalar_type()) {
      refuse(argument.text(), " is of type ", c10::toString(tensor.scalar_type()), ", but ",
             first.argument.text(), " is of type ", c10::toString(first.tensor->scalar_type()), ".");
    }
    if (tensor.device() != first.tensor->device()) {
      refuse(argument.text(), " is on ", tensor.device().str(), ", but ", first.argument.text(), " is on ",
             first.tensor->device().str(), ".");
    }
  }
  if (role != Role::kInput && tensor.is_inference() && !tensor.is_contiguous() &&
      !c10::InferenceMode::is_enabled()) {
    refuse(argument.text(),
           " was made in inference mode and is not contiguous, so it can only be written to in that mode.");
  }
  if (role != Role::kInput && overlaps_itself(tensor)) {
    refuse(argument.text(),
           " has several elements in one place (as after expand()), so it cannot be written to.");
  }
  entries_.push_back({&tensor, argument, role});
}

void Operation::check_together() const {
  if (entries_.size() < 2) return;
  const auto all = tensors();
  const auto found = find_overlap({all.data(), all.size()},
                                  [this](std::size_t i) { return entries_[i].role != Role::kInput; });
  if (!found) return;
  refuse(entries_[found->first].argument.text(), " and ", entries_[found->second].argument.text(),
         " share memory, and one of them is written to.");
}

c10::SmallVector<const at::Tensor*, 8> Operation::tensors() const {
  c10::SmallVector<const at::Tensor*, 8> all;
  for (const Entry& entry : entries_) all.push_back(entry.tensor);
  return all;
}

void Operation::check_nan(Backend& backend) const {
  if (!in_detail()) return;
  for (const Entry& entry : entries_) {
    if (entry.role == Role::kOutput) continue;
    const std::string found = describe_nan(*entry.tensor, entry.argument.text());
    if (found.empty()) continue;
    const Status why = Status::invalid(cat(call_, ": ", found, "."), {.op = call_, .group = state_->name()});
    backend.abort(why);
    throw_status(why);
  }
}

bool Operation::compares(OpKind kind) const {
  return in_detail() && !entries_.empty() && device_ == c10::DeviceType::CPU &&
         same_on_all_ranks(kind, state_->backend_name(device_));
}

// A call, and then the comparison of what all ranks have.
struct Operation::Compared {
  Compared(const Operation& op, const Backend& backend, const Call& given, std::shared_ptr<const void> keep)
      : held(given, std::move(keep)), comparison(*op.state_, op.call_, backend.sequence() + 1) {}
  static Rounds rounds(const std::shared_ptr<Compared>& it) {
    return {.calls = {[it]() -> Result<Call> { return it->held.call; },
                      [it]() -> Result<Call> { return it->comparison.exchange(it->held.outputs); }},
            .finish = [it] { return it->comparison.verdict(); }};
  }
  const backend::HeldCall held;
  Comparison comparison;
};

template <typename Body>
void Operation::run(Backend& backend, const Body& body) const {
  if (!Watched::wanted(*state_)) {
    if (const Status status = body(); !status.ok()) throw_status(status);
    return;
  }
  const auto all = tensors();
  Watched watched({.call = call_, .state = *state_, .backend = backend, .tensors = {all.data(), all.size()}});
  const std::uint64_t sequence = backend.sequence() + 1;
  const Status status = body();
  watched.complete(status, sequence);
  watched.returned(status, sequence);
  if (!status.ok()) throw_status(status);
}

template <typename Begin>
backend::WorkPtr Operation::start(Backend& backend, const Begin& begin) const {
  if (!Watched::wanted(*state_)) return begin();
  const auto all = tensors();
  const auto watched = std::make_shared<Watched>(WatchedCall{.call = call_,
                                                             .state = *state_,
                                                             .backend = backend,
                                                             .tensors = {all.data(), all.size()},
                                                             .async_op = true});
  backend::WorkPtr work = begin();
  Watched::complete_with(watched, *work);
  watched->returned({}, work->sequence());
  return work;
}

WorkHandle Operation::handle_of(backend::WorkPtr work, std::shared_ptr<Buffers> buffers) const {
  // What the backend refused at once is an error of this call, not of the operation.
  const Status early = work->status();
  if (early.code() == Code::kInvalid && early.failure() != Failure::kDesync) throw_status(early);
  return WorkHandle(
      std::make_shared<WorkHandle::State>(call_, std::move(work), std::move(buffers), state_, stack()));
}

OpOptions Operation::options(const Issue& how) const {
  OpOptions options;
  check_timeout(how.timeout);
  if (how.timeout) options.deadline = Clock::steady().in(*how.timeout);
  return options;
}

void Operation::lay_out(Buffers& buffers, Spans& spans) const {
  for (const Entry& entry : entries_) {
    const auto element = static_cast<std::size_t>(entry.tensor->element_size());
    if (entry.role == Role::kInput) {
      const ByteView bytes = buffers.input(*entry.tensor);
      if (!entry.parts.empty()) {
        append_parts(spans.inputs, bytes, entry.parts, element);
      } else {
        append_parts(spans.inputs, bytes, entry.equal_parts);
      }
      continue;
    }
    const ByteSpan bytes =
        entry.role == Role::kOutput ? buffers.output(*entry.tensor) : buffers.in_place(*entry.tensor);
    if (entry.role == Role::kBoth) spans.inputs.push_back(bytes);
    if (!entry.parts.empty()) {
      append_parts(spans.outputs, bytes, entry.parts, element);
    } else {
      append_parts(spans.outputs, bytes, entry.equal_parts);
    }
  }
}

WorkHandle Operation::issue(OpKind kind, int root, const Reduction& reduction, const Issue& how) {
  if (collective::reduces(kind)) {
    const Status possible = collective::check_reducible(dtype_, reduction.op);
    if (!possible.ok()) refuse("op: ", possible.message());
  }
  check_together();
  const std::shared_ptr<Backend> backend =
      entries_.empty() ? state_->any_backend(call_) : state_->backend(call_, device_);
  // What is only written is no input: the tensor of a broadcast, where it arrives.
  if (kind != OpKind::kBroadcast || root == rank()) check_nan(*backend);
  OpOptions options = this->options(how);
  Spans spans;
  Call call{.kind = kind,
            .dtype = dtype_,
            .reduce_op = reduction.op,
            .factor = reduction.factor,
            .root = Rank{root},
            .purpose = purpose_};
  const auto fill = [&](Buffers& buffers) {
    try {
      lay_out(buffers, spans);
    } catch (const std::exception&) {
      throw_no_memory("what is staged of tensors that are not contiguous");
    }
    call.inputs = {spans.inputs.data(), spans.inputs.size()};
    call.outputs = {spans.outputs.data(), spans.outputs.size()};
  };
  const bool compare = compares(kind);
  auto* const starter = compare ? dynamic_cast<backend::RoundStarter*>(backend.get()) : nullptr;
  if (!how.async_op || (compare && starter == nullptr)) {
    Buffers buffers;
    fill(buffers);
    run(*backend, [&] {
      if (!compare) return backend->run(call, options);
      const auto both = std::make_shared<Compared>(*this, *backend, call, nullptr);
      return backend::run_rounds(*backend, Compared::rounds(both), options);
    });
    buffers.finish();
    return {};
  }
  const auto buffers = std::make_shared<Buffers>();
  fill(*buffers);
  options.keep = buffers;
  backend::WorkPtr work = start(*backend, [&] {
    if (!compare) return backend->start(call, options);
    const auto both = std::make_shared<Compared>(*this, *backend, call, buffers);
    options.keep = both;
    return starter->start_rounds(Compared::rounds(both), options);
  });
  return handle_of(std::move(work), buffers);
}

WorkHandle Operation::issue_rounds(Rounds rounds, std::shared_ptr<const void> keep, const at::Tensor& written,
                                   const Issue& how) {
  const std::shared_ptr<Backend> backend = state_->backend(call_, device_);
  check_nan(*backend);
  OpOptions options = this->options(how);
  options.keep = std::move(keep);
  auto* const starter = dynamic_cast<backend::RoundStarter*>(backend.get());
  if (!how.async_op || starter == nullptr) {
    run(*backend, [&] { return backend::run_rounds(*backend, rounds, options); });
    return {};
  }
  const auto buffers = std::make_shared<Buffers>();
  buffers->note_written(written);
  return handle_of(start(*backend, [&] { return starter->start_rounds(std::move(rounds), options); }),
                   buffers);
}

}  // namespace lockstep::tensor
