#include "lockstep/ddp/distributed_data_parallel.h"

namespace lockstep::ddp {
namespace {

// The module that a dotted name lies in, made if it is not there, and the rest of the name.
std::pair<torch::nn::Module*, std::string> place_for(torch::nn::Module& root, std::string name) {
  torch::nn::Module* at = &root;
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
    const std::string child = name.substr(0, dot);
    const auto children = at->named_children();
    const auto* const found = children.find(child);
    at = found != nullptr ? found->get()
                          : at->register_module(child, std::make_shared<torch::nn::Module>()).get();
    name.erase(0, dot + 1);
  }
  return {at, std::move(name)};
}

}  // namespace

void DataParallelModule::mirror(std::shared_ptr<torch::nn::Module> module) {
  mirrored_ = std::move(module);
  mirror_again();
}

// Of what a module has itself, only children can be taken back.
void DataParallelModule::mirror_again() {
  if (!mirrored_) return;
  for (const auto& item : mirrored_->named_parameters(/*recurse=*/false)) {
    if (!parameters_.contains(item.key()))
      register_parameter(item.key(), item.value(), item.value().requires_grad());
  }
  const auto buffers = named_buffers(/*recurse=*/false);
  for (const auto& item : mirrored_->named_buffers(/*recurse=*/false)) {
    if (!buffers.contains(item.key())) register_buffer(item.key(), item.value());
  }
  if (children() == mirrored_->children()) return;
  for (const auto& item : named_children()) unregister_module(item.key());
  for (const auto& item : mirrored_->named_children()) register_module(item.key(), item.value());
}

void DataParallelModule::mirror(const torch::jit::Module& module) {
  for (const auto& item : module.named_parameters()) {
    auto [at, name] = place_for(*this, item.name);
    at->register_parameter(name, item.value, item.value.requires_grad());
  }
  for (const auto& item : module.named_buffers()) {
    auto [at, name] = place_for(*this, item.name);
    of_script_.emplace(item.name, at->register_buffer(name, item.value.variable_data()));
  }
}

void DataParallelModule::follow_buffers(const torch::jit::Module& module) const {
  for (const auto& item : module.named_buffers()) {
    if (const auto own = of_script_.find(item.name); own != of_script_.end())
      own->second.set_data(item.value);
  }
}

void DataParallelModule::give_buffers(const torch::jit::Module& module) const {
  for (const auto& item : module.named_buffers()) {
    if (const auto own = of_script_.find(item.name); own != of_script_.end())
      item.value.set_data(own->second);
  }
}

}  // namespace lockstep::ddp
