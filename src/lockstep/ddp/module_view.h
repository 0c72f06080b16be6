// A ModuleView is what data parallelism sees of the user's module, whatever kind of module that is. Internal.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/ddp/parameters.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace lockstep::ddp {

class ModuleView {
 public:
  virtual ~ModuleView() = default;
  // As they are now: a module may have been given others.
  virtual NamedTensors parameters() const = 0;
  virtual NamedTensors buffers() const = 0;
  virtual bool is_training() const = 0;
  virtual std::string type_name() const = 0;
  virtual bool has_sync_batch_norm() const = 0;
  // Names of parameters whose gradients are sparse by the kind of their module.
  virtual std::vector<std::string> sparse_parameters() const = 0;
  // Names of parameters and buffers that belong to a DistributedDataParallel inside the module.
  virtual std::vector<std::string> of_inner_models() const = 0;
};

// Sorted: `given`, other names of the same tensors, and what belongs to inner models. InvalidArgument for a
// name that the module has not.
std::vector<std::string> names_to_ignore(const ModuleView& module, std::vector<std::string> given);

// Shared with the user, who goes on to use the module.
std::unique_ptr<ModuleView> view_of(std::shared_ptr<torch::nn::Module> module);
std::unique_ptr<ModuleView> view_of(const torch::jit::Module& module);

}  // namespace lockstep::ddp
