#include "lockstep/ddp/module_view.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/ddp/distributed_data_parallel.h"

namespace lockstep::ddp {
namespace {

std::string joined(const std::string& prefix, const char* name) {
  return prefix.empty() ? name : cat(prefix, '.', name);
}

class NnModuleView final : public ModuleView {
 public:
  explicit NnModuleView(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  NamedTensors parameters() const override {
    NamedTensors all;
    for (const auto& item : module_->named_parameters()) all.emplace_back(item.key(), item.value());
    return all;
  }
  NamedTensors buffers() const override {
    NamedTensors all;
    for (const auto& item : module_->named_buffers()) all.emplace_back(item.key(), item.value());
    return all;
  }
  bool is_training() const override { return module_->is_training(); }
  std::string type_name() const override { return module_->name(); }
  bool has_sync_batch_norm() const override {
    bool found = false;
    module_->apply([&](const torch::nn::Module& module) {
      found = found || module.name().find("SyncBatchNorm") != std::string::npos;
    });
    return found;
  }
  std::vector<std::string> sparse_parameters() const override {
    std::vector<std::string> names;
    module_->apply([&](const std::string& name, const torch::nn::Module& module) {
      if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>();
          embedding && embedding->options.sparse())
        names.push_back(joined(name, "weight"));
      if (const auto* bag = module.as<torch::nn::EmbeddingBagImpl>(); bag && bag->options.sparse())
        names.push_back(joined(name, "weight"));
    });
    return names;
  }
  std::vector<std::string> of_inner_models() const override {
    std::unordered_set<const c10::TensorImpl*> inside;
    module_->apply([&](const torch::nn::Module& module) {
      if (dynamic_cast<const DataParallelModule*>(&module) == nullptr) return;
      for (const at::Tensor& parameter : module.parameters()) inside.insert(parameter.unsafeGetTensorImpl());
      for (const at::Tensor& buffer : module.buffers()) inside.insert(buffer.unsafeGetTensorImpl());
    });
    std::vector<std::string> names;
    for (const NamedTensors& all : {parameters(), buffers()}) {
      for (const auto& [name, tensor] : all) {
        if (inside.contains(tensor.unsafeGetTensorImpl())) names.push_back(name);
      }
    }
    return names;
  }

 private:
  const std::shared_ptr<torch::nn::Module> module_;
};

class JitModuleView final : public ModuleView {
 public:
  explicit JitModuleView(torch::jit::Module module) : module_(std::move(module)) {}

  NamedTensors parameters() const override {
    NamedTensors all;
    for (const auto& item : module_.named_parameters()) all.emplace_back(item.name, item.value);
    return all;
  }
  NamedTensors buffers() const override {
    NamedTensors all;
    for (const auto& item : module_.named_buffers()) all.emplace_back(item.name, item.value);
    return all;
  }
  bool is_training() const override { return module_.is_training(); }
  std::string type_name() const override {
    const auto name = module_.type()->name();
    return name ? name->name() : "ScriptModule";
  }
  bool has_sync_batch_norm() const override { return false; }
  std::vector<std::string> sparse_parameters() const override { return {}; }
  std::vector<std::string> of_inner_models() const override { return {}; }

 private:
  const torch::jit::Module module_;
};

}  // namespace

std::vector<std::string> names_to_ignore(const ModuleView& module, std::vector<std::string> given) {
  NamedTensors all = module.parameters();
  for (auto& named : module.buffers()) all.push_back(std::move(named));
  std::unordered_map<std::string, const c10::TensorImpl*> known;
  for (const auto& [name, tensor] : all) known.emplace(name, tensor.unsafeGetTensorImpl());
  std::unordered_set<const c10::TensorImpl*> ignored;
  for (const std::string& name : given) {
    if (const auto found = known.find(name); found != known.end()) {
      ignored.insert(found->second);
    } else {
      refuse(cat("parameters_and_buffers_to_ignore names ", base::quoted(name),
                 ", which is no parameter or buffer of the module."));
    }
  }
  for (const auto& [name, tensor] : all) {  // under all of its names
    if (tensor.defined() && ignored.contains(tensor.unsafeGetTensorImpl())) given.push_back(name);
  }
  std::vector<std::string> inner = module.of_inner_models();
  given.insert(given.end(), inner.begin(), inner.end());
  std::sort(given.begin(), given.end());
  return given;
}

std::unique_ptr<ModuleView> view_of(std::shared_ptr<torch::nn::Module> module) {
  return std::make_unique<NnModuleView>(std::move(module));
}
std::unique_ptr<ModuleView> view_of(const torch::jit::Module& module) {
  return std::make_unique<JitModuleView>(module);
}

}  // namespace lockstep::ddp
