#include "lockstep/tensor/borrowed/calls.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::tensor {
namespace {

c10d::ReduceOp premul_sum(double factor) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return c10d::makeNCCLPreMulSum(factor);
#else
  return c10d::makePreMulSum(factor);
#endif
}

c10d::ReduceOp reduce_op_of(const Call& call) {
  switch (call.reduce_op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kBand:
      return c10d::ReduceOp::BAND;
    case ReduceOp::kBor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::kBxor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::kPremulSum:
      return premul_sum(call.factor);
  }
  return c10d::ReduceOp::UNUSED;
}

at::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::kBool:
      return at::kBool;
    case DType::kUint8:
    case DType::kFloat8:
      return at::kByte;
    case DType::kInt8:
      return at::kChar;
    case DType::kInt16:
      return at::kShort;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt64:
      return at::kLong;
    case DType::kUint16:
      return at::kUInt16;
    case DType::kUint32:
      return at::kUInt32;
    case DType::kUint64:
      return at::kUInt64;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kComplex64:
      return at::kComplexFloat;
    case DType::kComplex128:
      return at::kComplexDouble;
  }
  return at::kByte;
}

// How many buffers travel; 1 for operations that are not coalesced.
std::size_t buffers_of(const Call& call) {
  switch (call.kind) {
    case OpKind::kReduce:
    case OpKind::kAllGather:
    case OpKind::kGather:
      return call.inputs.size();
    case OpKind::kBroadcast:
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
      return call.outputs.size();
    default:
      return 1;
  }
}

template <typename Span>
bool all_of_one_size(std::span<const Span> list) {
  return std::all_of(list.begin(), list.end(), [&](const Span& one) { return one.size() == list[0].size(); });
}

bool has(std::string_view text, std::string_view word) {
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  return std::search(text.begin(), text.end(), word.begin(), word.end(), same) != text.end();
}

// What only the words of c10d tell.
Code code_of_words(std::string_view text) {
  for (const auto* const word : {"not support", "unsupported", "not implement", "missing implementation"})
    if (has(text, word)) return Code::kUnsupported;
  for (const auto* const word : {"timed out", "timeout"})
    if (has(text, word)) return Code::kTimeout;
  if (has(text, "abort")) return Code::kAborted;
  for (const auto* const word : {"connection reset", "connection closed", "broken pipe", "disconnected"})
    if (has(text, word)) return Code::kDisconnected;
  return Code::kInternal;
}

// The first line: the others are a stack.
std::string words_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

}  // namespace

Status check_borrowed(const Call& call, WorldSize size) {
  if (call.kind != OpKind::kGather && call.kind != OpKind::kScatter) return {};
  const auto ranks = static_cast<std::size_t>(size.value);
  const auto even = [&](const auto& list) {
    for (std::size_t from = 0; from < list.size(); from += ranks)
      if (!all_of_one_size(list.subspan(from, ranks))) return false;
    return true;
  };
  if (call.kind == OpKind::kGather ? even(call.outputs) : even(call.inputs)) return {};
  return Status::unsupported(
      cat(collective::name_of(call.kind), " of uneven sizes, which c10d does not have; all_to_all does"));
}

at::Tensor tensor_of(ByteView bytes, at::ScalarType type, const BorrowedBytes& place) {
  // The maker refers to it.
  const std::array<std::int64_t, 1> shape = {
      static_cast<std::int64_t>(bytes.size() / c10::elementSize(type))};
  auto* const data = const_cast<std::byte*>(bytes.data());  // c10d has no tensors that are only read
  at::TensorMaker maker = at::for_blob(data, shape);
  maker.options(at::TensorOptions(type).device(place.device));
  // Of a real device's memory torch finds the device by itself.
  if (place.device == c10::DeviceType::CPU || place.device == c10::DeviceType::Meta)
    maker.target_device(c10::Device(place.device));
  if (place.keep) maker.deleter([keep = place.keep](void*) {});
  return maker.make_tensor();
}

BorrowedCall::BorrowedCall(c10d::Backend& lent, const Call& call, BorrowedBytes place,
                           const Deadline& deadline)
    : lent_(lent),
      call_(call),
      place_(std::move(place)),
      ranks_(static_cast<std::size_t>(lent.getSize())),
      timeout_(milliseconds_to(deadline)) {}

template <typename Options>
Options BorrowedCall::options() const {
  Options options;
  options.timeout = timeout_;
  if constexpr (requires { options.reduceOp; }) options.reduceOp = reduce_op_of(call_);
  if constexpr (requires { options.rootRank; }) options.rootRank = call_.root.value;
  return options;
}

at::Tensor BorrowedCall::tensor(ByteView bytes) const {
  const bool is_number = collective::reduces(call_.kind);
  return tensor_of(bytes, is_number ? scalar_type_of(call_.dtype) : at::kByte, place_);
}

std::vector<at::Tensor> BorrowedCall::inputs(std::size_t from, std::size_t count) const {
  std::vector<at::Tensor> list;
  for (const ByteView bytes : call_.inputs.subspan(from, count)) list.push_back(tensor(bytes));
  return list;
}

std::vector<at::Tensor> BorrowedCall::outputs(std::size_t from, std::size_t count) const {
  std::vector<at::Tensor> list;
  for (const ByteSpan bytes : call_.outputs.subspan(from, count)) list.push_back(tensor(bytes));
  return list;
}

BorrowedCall::Works BorrowedCall::begin() {
  const std::size_t buffers = buffers_of(call_);
  for (std::size_t b = 0; b < buffers; ++b) begin_buffer(b);
  return std::move(works_);
}

void BorrowedCall::begin_buffer(std::size_t buffer) {
  switch (call_.kind) {
    case OpKind::kBarrier:
    case OpKind::kMonitoredBarrier:
      return add(lent_.barrier(options<c10d::BarrierOptions>()));
    case OpKind::kBroadcast:
      return begin_broadcast(call_.outputs[buffer], call_.root.value);
    case OpKind::kAllReduce: {
      std::vector<at::Tensor> tensors = outputs(buffer, 1);
      return add(lent_.allreduce(tensors, options<c10d::AllreduceOptions>()));
    }
    case OpKind::kReduce:
      return begin_reduce(call_.inputs[buffer], call_.outputs.empty() ? ByteSpan() : call_.outputs[buffer],
                          call_.root.value);
    case OpKind::kAllGather:
      return begin_all_gather(buffer);
    case OpKind::kGather:
      return begin_gather(buffer);
    case OpKind::kScatter:
      return begin_scatter(buffer);
    case OpKind::kReduceScatter:
      return begin_reduce_scatter(buffer);
    case OpKind::kAllToAll:
      return begin_all_to_all();
  }
}

void BorrowedCall::begin_broadcast(ByteSpan bytes, int root) {
  std::vector<at::Tensor> tensors{tensor(bytes)};
  auto options = this->options<c10d::BroadcastOptions>();
  options.rootRank = root;
  add(lent_.broadcast(tensors, options));
}

// On the root in place of the output; elsewhere on a copy, because c10d may write to it.
void BorrowedCall::begin_reduce(ByteView input, ByteSpan output, int root) {
  const bool is_root = root == lent_.getRank();
  std::vector<at::Tensor> tensors;
  if (!is_root) {
    tensors.push_back(tensor(input).clone());
  } else {
    tensors.push_back(tensor(output));
    if (output.data() != input.data()) tensors[0].copy_(tensor(input));
  }
  auto options = this->options<c10d::ReduceOptions>();
  options.rootRank = root;
  add(lent_.reduce(tensors, options));
}

void BorrowedCall::begin_all_gather(std::size_t buffer) {
  const std::span<const ByteSpan> all = call_.outputs.subspan(buffer * ranks_, ranks_);
  if (all_of_one_size(all)) {
    std::vector<std::vector<at::Tensor>> to{outputs(buffer * ranks_, ranks_)};
    std::vector<at::Tensor> from = inputs(buffer, 1);
    return add(lent_.allgather(to, from, options<c10d::AllgatherOptions>()));
  }
  for (std::size_t r = 0; r < ranks_; ++r) {
    if (static_cast<int>(r) == lent_.getRank()) tensor(all[r]).copy_(tensor(call_.inputs[buffer]));
    begin_broadcast(all[r], static_cast<int>(r));
  }
}

void BorrowedCall::begin_gather(std::size_t buffer) {
  std::vector<std::vector<at::Tensor>> to;
  if (!call_.outputs.empty()) to.push_back(outputs(buffer * ranks_, ranks_));
  std::vector<at::Tensor> from = inputs(buffer, 1);
  add(lent_.gather(to, from, options<c10d::GatherOptions>()));
}

void BorrowedCall::begin_scatter(std::size_t buffer) {
  std::vector<at::Tensor> to = outputs(buffer, 1);
  std::vector<std::vector<at::Tensor>> from;
  if (!call_.inputs.empty()) from.push_back(inputs(buffer * ranks_, ranks_));
  add(lent_.scatter(to, from, options<c10d::ScatterOptions>()));
}

void BorrowedCall::begin_reduce_scatter(std::size_t buffer) {
  const std::span<const ByteView> all = call_.inputs.subspan(buffer * ranks_, ranks_);
  if (all_of_one_size(all)) {
    std::vector<at::Tensor> to = outputs(buffer, 1);
    std::vector<std::vector<at::Tensor>> from{inputs(buffer * ranks_, ranks_)};
    return add(lent_.reduce_scatter(to, from, options<c10d::ReduceScatterOptions>()));
  }
  for (std::size_t r = 0; r < ranks_; ++r) begin_reduce(all[r], call_.outputs[buffer], static_cast<int>(r));
}

void BorrowedCall::begin_all_to_all() {
  std::vector<at::Tensor> to = outputs(0, ranks_);
  std::vector<at::Tensor> from = inputs(0, ranks_);
  add(lent_.alltoall(to, from, options<c10d::AllToAllOptions>()));
}

std::chrono::milliseconds milliseconds_to(const Deadline& deadline) {
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()));
}

Status status_of_c10d(std::string_view call, const std::exception_ptr& thrown) {
  const auto said = [&](Code code, const std::string& words) {
    return Status(code, cat(call, " of c10d: ", words));
  };
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::NotImplementedError& error) {
    return said(Code::kUnsupported, words_of(error));
  } catch (const c10::ValueError& error) {
    return said(Code::kInvalid, words_of(error));
  } catch (const c10::TypeError& error) {
    return said(Code::kInvalid, words_of(error));
  } catch (const c10::IndexError& error) {
    return said(Code::kInvalid, words_of(error));
  } catch (const c10::OutOfMemoryError& error) {
    return said(Code::kInternal, words_of(error)).with_cause({.failure = Failure::kNoMemory});
  } catch (const c10::DistNetworkError& error) {
    const Code code = code_of_words(words_of(error));
    return said(code == Code::kTimeout ? code : Code::kDisconnected, words_of(error));
  } catch (const c10::Error& error) {
    return said(code_of_words(words_of(error)), words_of(error));
  } catch (const std::exception& error) {
    return said(code_of_words(error.what()), error.what());
  } catch (...) {
    return said(Code::kInternal, "an exception of an unknown kind");
  }
}

}  // namespace lockstep::tensor
