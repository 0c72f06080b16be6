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

void set_buffers(Net& net, const std::vector<at::Tensor>& values) {
  const torch::NoGradGuard no_grad;
  const auto now = net.buffers();
  for (std::size_t i = 0; i < now.size(); ++i) now[i].copy_(values[i]);
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
  if (!buffers_.empty()) set_buffers(*net_, buffers_[static_cast<std::size_t>(rank)]);
}

void OneProcess::backward(int step, int accumulated) {
  const auto train = [&](int rank, int part) {
    net_->forward(net_->batch(rank, step * accumulated + part)).backward();
  };
  if (ranks_ == 1) {
    for (int part = 0; part < accumulated; ++part) train(0, part);
    return;
  }
  const std::vector<at::Tensor> parameters = net_->parameters();
  const std::vector<at::Tensor> before = clones(gradients(*net_));
  if (buffers_.empty()) buffers_.assign(static_cast<std::size_t>(ranks_), clones(net_->buffers()));
  std::vector<at::Tensor> of_the_first;  // before the last part
  std::vector<at::Tensor> sums(parameters.size());
  std::vector<bool> used(parameters.size(), false);
  for (int rank = 0; rank < ranks_; ++rank) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = before[i].defined() ? before[i].clone() : at::Tensor();
    show_buffers_of(rank);
    for (int part = 0; part + 1 < accumulated; ++part) train(rank, part);
    if (rank == 0) of_the_first = clones(net_->buffers());
    if (begin_with_ == Buffers::kOfTheFirst) set_buffers(*net_, of_the_first);
    train(rank, accumulated - 1);
    buffers_[static_cast<std::size_t>(rank)] = clones(net_->buffers());
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
