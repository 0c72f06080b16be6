#include "lockstep/ddp/state_dict.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::ddp {
namespace {

constexpr std::string_view kPrefix = "module.";

[[noreturn]] void refuse(const std::string& what) {
  throw tensor::InvalidArgument(Status::invalid(cat("load_state_dict: ", what), {.op = "load_state_dict"}),
                                {});
}

std::map<std::string, at::Tensor> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(cat("cannot read ", base::quoted(path), '.'));
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  c10::IValue value;
  try {
    value = torch::jit::pickle_load(bytes);
  } catch (const std::exception&) {
    refuse(cat(base::quoted(path), " is not what torch.save(model.state_dict(), path) writes."));
  }
  if (!value.isGenericDict()) refuse(cat(base::quoted(path), " holds no dictionary of tensors."));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : value.toGenericDict()) {
    if (!item.key().isString() || !item.value().isTensor())
      refuse(cat(base::quoted(path), " holds something else than tensors by name."));
    tensors.emplace(item.key().toStringRef(), item.value().toTensor());
  }
  const bool wrapped = std::all_of(tensors.begin(), tensors.end(),
                                   [](const auto& item) { return item.first.starts_with(kPrefix); });
  if (!wrapped) return tensors;
  std::map<std::string, at::Tensor> unwrapped;
  for (const auto& [name, tensor] : tensors) unwrapped.emplace(name.substr(kPrefix.size()), tensor);
  return unwrapped;
}

}  // namespace

void load_state_dict(torch::nn::Module& module, const std::string& path) {
  std::map<std::string, at::Tensor> given = read(path);
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  const auto pair = [&](const std::string& name, const at::Tensor& own) {
    const auto found = given.find(name);
    if (found == given.end()) refuse(cat(base::quoted(path), " has no ", base::quoted(name), '.'));
    if (found->second.sizes() != own.sizes())
      refuse(cat(base::quoted(path), " has ", base::quoted(name), " in another shape than the module."));
    pairs.emplace_back(own, found->second);
    given.erase(found);
  };
  for (const auto& item : module.named_parameters()) pair(item.key(), item.value());
  for (const auto& item : module.named_buffers()) pair(item.key(), item.value());
  if (!given.empty())
    refuse(
        cat(base::quoted(path), " has ", base::quoted(given.begin()->first), ", which the module has not."));
  const at::NoGradGuard no_grad;
  for (const auto& [own, other] : pairs) own.copy_(other);
}

}  // namespace lockstep::ddp
