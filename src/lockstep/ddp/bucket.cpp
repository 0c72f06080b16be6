#include "lockstep/ddp/bucket.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <string>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/collective/copy.h"
#include "lockstep/ddp/logger.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/resident.h"

namespace lockstep::ddp {
namespace {

constexpr std::int64_t kCopiedByOneThread = std::int64_t{128} << 10;  // bytes, at least

// On the symmetric heap, if it has room.
at::Tensor make_buffer(std::int64_t elements, const at::TensorOptions& options) {
  if (options.device().is_cpu() && elements > 0) {
    try {
      return tensor::empty_resident({elements}, options);
    } catch (const tensor::DistError& error) {
      kLog.warn(cat("A gradient bucket of ",
                    Bytes{static_cast<std::size_t>(elements) * options.dtype().itemsize()},
                    " is plain memory, which is slower: ", error.message()));
    }
  }
  return at::empty({elements}, options);
}

// Whether its memory is not what it says.
bool is_lazy(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor();
}

}  // namespace

std::vector<std::int64_t> gradient_strides(const at::Tensor& local) {
  if (local.is_non_overlapping_and_dense()) return local.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(local.dim()));
  std::int64_t step = 1;
  for (std::size_t d = strides.size(); d-- > 0;) {
    strides[d] = step;
    step *= local.size(static_cast<std::int64_t>(d));
  }
  return strides;
}

GradBucket GradBucket::for_sparse(std::size_t index, const at::Tensor& local) {
  GradBucket bucket(index, {local}, true);
  bucket.views_.resize(1);
  return bucket;
}

GradBucket::GradBucket(std::size_t index, std::vector<at::Tensor> locals,
                       const std::vector<std::vector<std::int64_t>>& strides)
    : GradBucket(index, std::move(locals), false) {
  const at::NoGradGuard no_grad;
  std::int64_t elements = 0;
  for (const at::Tensor& local : locals_) elements += local.numel();
  const at::TensorOptions options = locals_.front().options().requires_grad(false);
  home_ = make_buffer(elements, options);
  home_.zero_();
  buffer_ = home_.variable_data();
  std::int64_t at = 0;
  for (std::size_t i = 0; i < locals_.size(); ++i) {
    // variable_data(): the same memory, but nothing that autograd would take for a view.
    views_.push_back(home_.as_strided(locals_[i].sizes(), strides[i], at).variable_data());
    at += locals_[i].numel();
  }
}

std::vector<at::Tensor> GradBucket::gradients() const {
  if (sparse_) return {buffer_};
  std::vector<at::Tensor> views;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    views.push_back(buffer_.as_strided(views_[i].sizes(), views_[i].strides(), at));
    at += views_[i].numel();
  }
  return views;
}

void GradBucket::fill(std::size_t place, const at::Tensor& gradient, collective::CopyChoice& choice) const {
  const at::Tensor& view = views_[place];
  const std::size_t size = view.nbytes();
  const bool same_layout = gradient.is_cpu() && view.is_cpu() && gradient.strides() == view.strides() &&
                           view.is_non_overlapping_and_dense();
  if (!same_layout || is_lazy(gradient)) {
    view.copy_(gradient);
    return;
  }
  auto* const to = static_cast<std::byte*>(view.mutable_data_ptr());
  const auto* const from = static_cast<const std::byte*>(gradient.const_data_ptr());
  if (size < collective::CopyChoice::kLeast) {  // the call of an operator would take longer
    if (size > 0) std::memcpy(to, from, size);
    return;
  }
  const collective::CopyWay way = choice.next();
  const base::TimePoint start = Clock::steady().now();
  at::parallel_for(0, static_cast<std::int64_t>(size), kCopiedByOneThread,
                   [=](std::int64_t begin, std::int64_t end) {
                     const auto bytes = static_cast<std::size_t>(end - begin);
                     collective::copy_for_peers({to + begin, bytes}, from + begin, way);
                   });
  choice.took(way, size, Clock::steady().now() - start);
}

bool GradBucket::holds(std::size_t place, const at::Tensor& gradient) const {
  const at::Tensor& view = views_[place];
  if (gradient.is_same(view)) return true;
  return !sparse_ && gradient.layout() == at::kStrided &&
         gradient.const_data_ptr() == view.const_data_ptr() && gradient.sizes() == view.sizes() &&
         gradient.strides() == view.strides() && gradient.scalar_type() == view.scalar_type() &&
         !is_lazy(gradient);
}

bool GradBucket::is_at_home() const {
  return buffer_.defined() && buffer_.layout() == at::kStrided && buffer_.sizes() == home_.sizes() &&
         buffer_.strides() == home_.strides() && buffer_.scalar_type() == home_.scalar_type() &&
         buffer_.const_data_ptr() == home_.const_data_ptr() && !is_lazy(buffer_);
}

std::string GradBucket::settle() {
  if (sparse_) {
    const at::Tensor& local = locals_.front();
    if (buffer_.defined() && buffer_.is_sparse() && buffer_.sizes() == local.sizes() &&
        buffer_.scalar_type() == local.scalar_type())
      return {};
    return cat("the hook has given no sparse gradient of the parameter's shape and type, ",
               c10::toString(local.scalar_type()));
  }
  if (is_at_home()) return {};
  const at::Tensor given = std::exchange(buffer_, home_.variable_data());
  if (!given.defined()) return "the hook has given an undefined tensor as the bucket's buffer";
  if (given.scalar_type() != home_.scalar_type() || given.numel() != home_.numel() ||
      given.layout() != at::kStrided) {
    return cat("the hook has given a ", given.layout() == at::kStrided ? "buffer" : "sparse buffer", " of ",
               given.numel(), " elements of type ", c10::toString(given.scalar_type()),
               ", but the bucket has ", home_.numel(), " of type ", c10::toString(home_.scalar_type()));
  }
  const at::NoGradGuard no_grad;
  home_.copy_(given.reshape({-1}).resolve_conj().resolve_neg());  // which may be this memory
  return {};
}

void GradBucket::clear() {
  if (sparse_) buffer_.reset();
}

}  // namespace lockstep::ddp
