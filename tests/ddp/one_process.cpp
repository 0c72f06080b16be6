#include "one_process.h"

#include <torch/types.h>

#include <cstring>

namespace lockstep::testing {
namespace {

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.defined() ? tensor.clone() : tensor);
  return all;
}

std::vector<at::Tensor> gradients(Net& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : net.parameters()) all.push_back(parameter.grad());
  return all;
}

// Sums of these are kept in 32 bits, and rounded once.
bool is_short(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.to_dense().contiguous();
  const at::Tensor y = b.to_dense().contiguous();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace

void OneProcess::show_buffers_of(int rank) {
  if (buffers_after_.empty()) return;
  const torch::NoGradGuard no_grad;
  const auto now = net_->buffers();
  for (std::size_t i = 0; i < now.size(); ++i)
    now[i].copy_(buffers_after_[static_cast<std::size_t>(rank)][i]);
}

void OneProcess::backward(int step, int accumulated) {
  const auto train = [&](int rank) {
    for (int part = 0; part < accumulated; ++part)
      net_->forward(net_->batch(rank, step * accumulated + part)).backward();
  };
  if (ranks_ == 1) return train(0);
  const std::vector<at::Tensor> parameters = net_->parameters();
  const std::vector<at::Tensor> before = clones(gradients(*net_));
  std::vector<std::vector<at::Tensor>> buffers;  // by rank
  for (int rank = 0; rank < ranks_; ++rank) {
    show_buffers_of(begin_with_ == Buffers::kOfEach ? rank : 0);
    buffers.push_back(clones(net_->buffers()));
  }
  buffers_after_.clear();
  std::vector<at::Tensor> sums(parameters.size());
  std::vector<bool> used(parameters.size(), false);
  for (int rank = 0; rank < ranks_; ++rank) {
    const torch::NoGradGuard no_grad;
    const auto now = net_->buffers();
    for (std::size_t i = 0; i < now.size(); ++i) now[i].copy_(buffers[static_cast<std::size_t>(rank)][i]);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = before[i].defined() ? before[i].clone() : at::Tensor();
    {
      const at::AutoGradMode grad(true);
      train(rank);
    }
    buffers_after_.push_back(clones(net_->buffers()));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = parameters[i].grad();
      if (!gradient.defined()) continue;
      if (!before[i].defined() || !same_bits(gradient, before[i])) used[i] = true;
      // What a rank has not used counts as zero.
      const at::Tensor own = gradient.is_sparse() ? gradient.coalesce()
                             : is_short(gradient) ? gradient.to(at::kFloat)
                                                  : gradient.clone();
      sums[i] = sums[i].defined() ? sums[i] + own : own;
      if (own.is_sparse()) sums[i] = sums[i].coalesce();
    }
  }
  const torch::NoGradGuard no_grad;
  show_buffers_of(0);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor mean = used[i] ? sums[i] / ranks_ : before[i];
    parameters[i].mutable_grad() = mean.defined() ? mean.to(parameters[i].scalar_type()) : mean;
  }
}

void descend(Net& net, double rate) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net.parameters()) {
    if (parameter.grad().defined()) parameter.add_(parameter.grad(), -rate);
  }
}

std::string difference(const Net& a, const Net& b) {
  const auto compare = [](const auto& x, const auto& y, const auto& get, const char* what) -> std::string {
    for (const auto& item : x) {
      const at::Tensor one = get(item.value());
      const at::Tensor other = get(y[item.key()]);
      if (same_bits(one, other)) continue;
      std::string text = std::string(what) + " of " + item.key();
      if (one.defined() && other.defined())
        text += ": at most " +
                std::to_string((one.to_dense() - other.to_dense()).abs().max().template item<double>());
      return text;
    }
    return {};
  };
  const auto itself = [](const at::Tensor& tensor) { return tensor; };
  const auto gradient = [](const at::Tensor& tensor) { return tensor.grad(); };
  std::string found = compare(a.named_parameters(), b.named_parameters(), gradient, "the gradient");
  if (found.empty()) found = compare(a.named_parameters(), b.named_parameters(), itself, "the value");
  if (found.empty()) found = compare(a.named_buffers(), b.named_buffers(), itself, "the buffer");
  return found;
}

}  // namespace lockstep::testing
