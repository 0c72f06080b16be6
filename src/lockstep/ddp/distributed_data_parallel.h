// DistributedDataParallel trains a module on all ranks of a group: each has a replica and its own part of the
// data, and the gradients are averaged while backward runs.
//
//   auto net = std::make_shared<Net>();
//   lockstep::DistributedDataParallel model(net, {.bucket_cap_mb = 25});
//   torch::optim::SGD optimizer(model.parameters(), 0.01);
//   ...
//   auto loss = torch::nll_loss(model(batch.data), batch.target);   // any forward signature
//   loss.backward();                                                // buckets travel while this runs
//   optimizer.step();
//
// Construction is a collective: parameters and buffers are checked and become those of rank 0; what one rank
// refuses, all throw. So is every forward with gradients in training mode (buffers), and every backward that
// follows one (gradients). Forward under no_grad, or in eval mode, never communicates. All replicas get
// bitwise the same gradients: the sum of the ranks' gradients in the order of ranks, divided once. A loss
// that is a mean over the batch therefore trains as on the whole batch; one that is a sum gives 1/n of it.
//
// It is a module itself, with the names of the wrapped one and no prefix: what is saved from one loads into
// the other. `model->` and module() reach the wrapped module. Several may stand in one graph, also for
// different groups, and one inside the module of another: then the inner one reduces what belongs to it, for
// its own group, and the outer one leaves that alone.
// Ownership: shares the module. Thread safety and errors: data_parallel.h.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <concepts>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ddp/data_parallel.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/output_tensors.h"

namespace torch::nn {
class SequentialImpl;
}

namespace lockstep::ddp {

// While it lives, what forward begins is not synchronised: gradients are accumulated on this rank. The next
// pass that begins with a forward outside of it reduces all that was accumulated.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<DataParallel> core) : core_(std::move(core)) { core_->hold_sync(); }
  ~NoSync() { core_->release_sync(); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  const std::shared_ptr<DataParallel> core_;  // shared: the model may go before the guard does
};

// What a wrapper of M keeps, and how it gets at the module behind it.
template <typename M>
struct Wrapped {
  using Pointer = std::shared_ptr<M>;
  static bool has_module(const Pointer& module) { return module != nullptr; }
  static std::shared_ptr<torch::nn::Module> base(const Pointer& module) { return module; }
};
template <>
struct Wrapped<torch::nn::AnyModule> {
  using Pointer = std::shared_ptr<torch::nn::AnyModule>;
  static bool has_module(const Pointer& module) { return module != nullptr && !module->is_empty(); }
  static std::shared_ptr<torch::nn::Module> base(const Pointer& module) { return module->ptr(); }
};
template <>
struct Wrapped<torch::jit::Module> {
  using Pointer = std::shared_ptr<torch::jit::Module>;
  static bool has_module(const Pointer& module) { return module != nullptr; }
};

// What gives a tensor, or something else if one says so.
template <typename M>
concept GivesAnything = std::same_as<M, torch::nn::AnyModule> || std::same_as<M, torch::nn::SequentialImpl>;

// The part that does not depend on the kind of module: a module that has the children, parameters and buffers
// of another as its own.
class DataParallelModule : public torch::nn::Module {
 public:
  // Names as in the module, also, after each forward, of what it was given or has lost since; those of jit,
  // which have dots in them, as modules in modules.
  void mirror(std::shared_ptr<torch::nn::Module> module);
  void mirror(const torch::jit::Module& module);

  NoSync no_sync() const { return NoSync(core_); }
  // Once, before the first backward.
  void register_comm_hook(CommHookPtr hook) { core_->register_comm_hook(std::move(hook)); }
  void register_comm_hook(std::function<HookWork(GradBucket&)> hook) {
    core_->register_comm_hook(function_hook(std::move(hook)));
  }
  void register_buffer_comm_hook(BufferHook hook,
                                 BufferHookLocation where = BufferHookLocation::kPostForward) {
    core_->register_buffer_comm_hook(std::move(hook), where);
  }
  // Gradients are this rank's own from now on.
  void remove_autograd_hooks() { core_->remove_autograd_hooks(); }
  void update_process_group(const tensor::ProcessGroup& group) { core_->update_process_group(group); }
  // torch's logging data, also as JSON: model.logging_data().json().
  LoggingData logging_data() const { return core_->logging_data(); }
  void set_runtime_logging_sample_rate(int rate) { core_->set_runtime_logging_sample_rate(rate); }
  const DataParallel& core() const { return *core_; }
  // Called for every step of every synchronised pass; one observer, an empty one for none.
  void observe(PassObserver observer) { core_->observe(std::move(observer)); }

 protected:
  explicit DataParallelModule(const std::string& name) : torch::nn::Module(name) {}
  // Runs forward between the two halves of the core; what it throws is told to the other ranks.
  template <typename Forward>
  decltype(auto) around(const Forward& forward) {
    const DataParallel::ForwardKind kind = core_->next_kind();
    try {
      core_->begin_forward(kind);
      if constexpr (std::is_void_v<decltype(forward())>) {
        forward();
        mirror_again();
        core_->end_forward(kind, {}, &typeid(void));
      } else {
        decltype(auto) output = forward();
        mirror_again();
        using Output = std::remove_cvref_t<decltype(output)>;
        std::vector<at::Tensor> tensors;
        find_tensors<Output>(output, tensors);
        core_->end_forward(kind, tensors, unknown_in<Output>());
        if constexpr (std::is_rvalue_reference_v<decltype(output)>) {
          return std::move(output);
        } else {
          return output;
        }
      }
    } catch (...) {
      core_->forward_failed(kind);
      throw;
    }
  }

  // A script may put other tensors in place of its buffers. Those here have its memory, but are tensors of
  // their own, which are led to the new memory; or the script's to theirs, after load(). A buffer that was
  // registered since is the script's alone.
  void follow_buffers(const torch::jit::Module& module) const;
  void give_buffers(const torch::jit::Module& module) const;

  std::shared_ptr<DataParallel> core_;  // shared with guards

 private:
  void mirror_again();

  std::shared_ptr<torch::nn::Module> mirrored_;  // null for a script
  std::map<std::string, at::Tensor> of_script_;  // its buffers when it was wrapped, by name
};

template <typename M>
class DistributedDataParallel : public DataParallelModule {
 public:
  using Pointer = typename Wrapped<M>::Pointer;

  explicit DistributedDataParallel(Pointer module, const DataParallelOptions& options = {})
      : DataParallelModule("DistributedDataParallel"), module_(std::move(module)) {
    const bool given = Wrapped<M>::has_module(module_);
    if constexpr (std::same_as<M, torch::jit::Module>) {
      core_ = DataParallel::make(given ? view_of(*module_) : nullptr, options);
      mirror(*module_);
    } else {
      core_ = DataParallel::make(given ? view_of(Wrapped<M>::base(module_)) : nullptr, options);
      mirror(Wrapped<M>::base(module_));
    }
  }
  explicit DistributedDataParallel(const torch::nn::ModuleHolder<M>& holder,
                                   const DataParallelOptions& options = {})
    requires std::derived_from<M, torch::nn::Module>
      : DistributedDataParallel(holder.is_empty() ? nullptr : holder.ptr(), options) {}
  explicit DistributedDataParallel(M module, const DataParallelOptions& options = {})
    requires(std::same_as<M, torch::nn::AnyModule> || std::same_as<M, torch::jit::Module>)
      : DistributedDataParallel(std::make_shared<M>(std::move(module)), options) {}

  template <typename... Args>
    requires(!GivesAnything<M> && !std::same_as<M, torch::jit::Module>)
  decltype(auto) forward(Args&&... args) {
    return around([&]() -> decltype(auto) {
      look_into(args...);
      return module_->forward(std::forward<Args>(args)...);
    });
  }
  // model({x}, {{"scale", 2}}): of a script, as it is called itself.
  c10::IValue forward(std::vector<c10::IValue> inputs, const torch::jit::Kwargs& kwargs = {})
    requires std::same_as<M, torch::jit::Module>
  {
    return around([&] {
      look_into(inputs, kwargs);
      c10::IValue output = module_->forward(std::move(inputs), kwargs);
      follow_buffers(*module_);
      return output;
    });
  }
  c10::IValue operator()(std::vector<c10::IValue> inputs, const torch::jit::Kwargs& kwargs = {})
    requires std::same_as<M, torch::jit::Module>
  {
    return forward(std::move(inputs), kwargs);
  }
  // model.forward<std::tuple<at::Tensor, at::Tensor>>(x): of a module that does not know what it gives.
  template <typename Output = at::Tensor, typename... Args>
    requires GivesAnything<M>
  Output forward(Args&&... args) {
    return around([&] {
      look_into(args...);
      return module_->template forward<Output>(std::forward<Args>(args)...);
    });
  }
  template <typename... Args>
  decltype(auto) operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  const Pointer& module() const { return module_; }
  M* operator->() const { return module_.get(); }

  void train(bool on = true) override {
    Module::train(on);
    if constexpr (std::same_as<M, torch::jit::Module>) {
      module_->train(on);
    } else {
      Wrapped<M>::base(module_)->train(on);
    }
  }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    convert(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override { convert(dtype, non_blocking); }
  void to(torch::Device device, bool non_blocking = false) override { convert(device, non_blocking); }
  void save(torch::serialize::OutputArchive& archive) const override {
    if constexpr (std::same_as<M, torch::jit::Module>) {
      follow_buffers(*module_);
      Module::save(archive);
    } else {
      Wrapped<M>::base(module_)->save(archive);
    }
  }
  void load(torch::serialize::InputArchive& archive) override {
    if constexpr (std::same_as<M, torch::jit::Module>) {
      follow_buffers(*module_);
      Module::load(archive);
      give_buffers(*module_);
    } else {
      Wrapped<M>::base(module_)->load(archive);
    }
  }

 private:
  template <typename... To>
  void convert(To... to) {
    if constexpr (std::same_as<M, torch::jit::Module>) {
      Module::to(to...);
      give_buffers(*module_);
    } else {
      Wrapped<M>::base(module_)->to(to...);
    }
  }
  template <typename... Args>
  void look_into(const Args&... args) {
    if (!core_->wants_inputs()) return;
    if (const std::type_info* const unknown = unknown_in<Types<std::decay_t<const Args&>...>>()) {
      core_->inputs_are_unknown(*unknown);
    } else {
      core_->set_inputs(tensors_in(args...));
    }
  }

  const Pointer module_;
};

template <typename Holder>
  requires requires { typename Holder::ContainedType; }
DistributedDataParallel(const Holder&, DataParallelOptions = {})
    -> DistributedDataParallel<typename Holder::ContainedType>;
template <typename M>
  requires(std::same_as<M, torch::nn::AnyModule> || std::same_as<M, torch::jit::Module>)
DistributedDataParallel(M, DataParallelOptions = {}) -> DistributedDataParallel<M>;
template <typename M>
DistributedDataParallel(std::shared_ptr<M>, DataParallelOptions = {}) -> DistributedDataParallel<M>;

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::DistributedDataParallel;
using ddp::NoSync;
}  // namespace lockstep
