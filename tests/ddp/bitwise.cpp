#include "bitwise.h"

#include <torch/utils.h>

#include <algorithm>
#include <list>
#include <memory>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/groups.h"
#include "one_process.h"

namespace lockstep::testing {
namespace {

constexpr double kEach = 1e-6;  // MiB: every gradient is a bucket

// What the passes of a net have in common, and what can be delayed.
struct Trained {
  std::string net;
  bool uses_all = true;         // parameters
  bool ranks_are_alike = true;  // in what they leave unused
  bool steps_are_alike = true;
  std::vector<std::string> delayed = {};
  std::string until = {};  // the parameter that is always the last to have its gradient
};

const std::vector<Trained>& all_trained() {
  static const std::vector<Trained> all{
      {.net = "mlp",
       .delayed = {"layers.3.weight", "layers.3.bias", "layers.1.bias"},
       .until = "layers.0.weight"},
      {.net = "cnn", .delayed = {"head.weight", "second.weight"}, .until = "first.weight"},
      {.net = "lstm", .delayed = {"head.bias"}, .until = "lstm.bias_hh_l0"},
      {.net = "embedding", .delayed = {"head.weight", "head.bias"}, .until = "words.weight"},
      {.net = "gpt", .delayed = {"norms.1.weight", "inner.0.bias"}, .until = "places"},
      {.net = "branches", .uses_all = false, .ranks_are_alike = false, .steps_are_alike = false},
      {.net = "same_branches", .uses_all = false, .steps_are_alike = false},
      {.net = "one_branch", .uses_all = false},
      {.net = "sparse_branches", .uses_all = false, .ranks_are_alike = false, .steps_are_alike = false},
      {.net = "sparse_branch_by_rank", .uses_all = false, .ranks_are_alike = false},
      {.net = "mixed", .delayed = {"wide", "short"}, .until = "turned"},
  };
  return all;
}

// A shared one once.
std::vector<std::string> trainable_parameters(const std::string& net) {
  std::vector<std::string> names;
  std::set<const void*> seen;
  for (const auto& parameter : make_net(net)->named_parameters()) {
    const bool is_new = seen.insert(parameter.value().unsafeGetTensorImpl()).second;
    if (is_new && parameter.value().requires_grad()) names.push_back(parameter.key());
  }
  return names;
}

void clear(Net& net, Clear how) {
  for (at::Tensor& parameter : net.parameters()) {
    if (how == Clear::kZero && parameter.grad().defined() && !parameter.grad().is_sparse()) {
      parameter.mutable_grad().detach_().zero_();
    } else {
      parameter.mutable_grad().reset();
    }
  }
}

// Ways that one process stands for.
bool have_one_reference(const Way& a, const Way& b) {
  return a.clear == b.clear && a.accumulated == b.accumulated &&
         syncs_buffers(a.options) == syncs_buffers(b.options);
}

class Model {
 public:
  Model(const std::string& name, const Way& way)
      : way_(way), net_(make_net(name)), model_(net_, way.options) {
    if (way.hook == Hook::kAllReduce) model_.register_comm_hook(all_reduce_hook());
  }
  void backward(int rank, int step) {
    clear(*net_, way_.clear);
    const int first = step * way_.accumulated;
    for (int part = 0; part + 1 < way_.accumulated; ++part) {
      const auto guard = model_.no_sync();
      model_(net_->batch(rank, first + part)).backward();
    }
    model_(net_->batch(rank, first + way_.accumulated - 1)).backward();
  }
  Net& net() { return *net_; }
  const Way& way() const { return way_; }

 private:
  const Way& way_;
  const std::shared_ptr<Net> net_;
  DistributedDataParallel<Net> model_;
};

// The one process, and the models that are compared with it.
struct Reference {
  Reference(const std::string& net, const Way& first)
      : way(first),
        process(net, get_world_size(),
                syncs_buffers(first.options) ? Buffers::kOfTheFirst : Buffers::kOfEach) {}
  void backward(int step) {
    clear(process.net(), way.clear);
    process.backward(step, way.accumulated);
    process.show_buffers_of(get_rank());
  }

  const Way& way;
  OneProcess process;
  std::list<Model> models;
};

}  // namespace

std::vector<std::string> nets_to_train() {
  std::vector<std::string> names;
  for (const Trained& trained : all_trained()) names.push_back(trained.net);
  return names;
}

std::vector<Way> ways_to_train(const std::string& net) {
  const Trained& trained = *std::ranges::find(all_trained(), net, &Trained::net);
  std::vector<Way> ways{
      {},
      {.options = {.bucket_cap_mb = 0.001}, .clear = Clear::kZero},
      {.options = {.bucket_cap_mb = kEach}},
      {.options = {.bucket_cap_mb_list = {0.0001, 0.001}}},
      {.options = {.bucket_cap_mb = 0.001, .first_bucket_cap_mb = 0.0001}},
      {.options = {.gradient_as_bucket_view = false}},
      {.options = {.gradient_as_bucket_view = false, .bucket_cap_mb = 0.001}, .clear = Clear::kZero},
      {.options = {.batched_grad_copy = true}, .clear = Clear::kZero},
      {.options = {.gradient_as_bucket_view = false, .batched_grad_copy = true}},
      {.options = {.init_sync = false}},
      {.options = {.forward_sync_buffers = false, .bucket_cap_mb = 0.001}},
      {.options = {.broadcast_buffers = false}},
      {.hook = Hook::kAllReduce},
      {.accumulated = 3},
      {.options = {.gradient_as_bucket_view = false, .bucket_cap_mb = kEach}, .accumulated = 2},
      {.options = {.forward_sync_buffers = false}, .clear = Clear::kZero, .accumulated = 2},
  };
  const DataParallelOptions searched{.find_unused_parameters = true, .bucket_cap_mb = 0.001};
  for (Way& way : ways) way.options.find_unused_parameters = !trained.uses_all;
  if (trained.uses_all) ways.push_back({.options = searched});
  if (trained.steps_are_alike) {
    ways.push_back({.options = {.static_graph = true}});
    ways.push_back(
        {.options = {.static_graph = true, .gradient_as_bucket_view = false, .bucket_cap_mb = kEach},
         .clear = Clear::kZero});
    ways.push_back({.options = {.static_graph = true, .bucket_cap_mb_list = {0.0001, 0.001}}});
    ways.push_back({.options = {.static_graph = true, .batched_grad_copy = true}, .accumulated = 2});
  }
  if (trained.ranks_are_alike) {
    for (const Clear how : {Clear::kNone, Clear::kZero}) {
      const DataParallelOptions skipped{
          .find_unused_parameters = true, .skip_all_reduce_unused_params = true, .bucket_cap_mb = kEach};
      ways.push_back({.options = skipped, .clear = how});
    }
  }
  if (trained.ranks_are_alike && trained.steps_are_alike) {
    for (const Clear how : {Clear::kNone, Clear::kZero}) {
      const DataParallelOptions skipped{
          .static_graph = true, .skip_all_reduce_unused_params = true, .bucket_cap_mb = kEach};
      ways.push_back({.options = skipped, .clear = how});
    }
  }
  if (!trained.delayed.empty()) {
    const auto delay = [&](const std::vector<std::string>& names, bool views, Clear how) {
      const DataParallelOptions delayed{.gradient_as_bucket_view = views,
                                        .delay_all_reduce_named_params = names,
                                        .param_to_hook_all_reduce = trained.until,
                                        .bucket_cap_mb = 0.001};
      ways.push_back({.options = delayed, .clear = how});
    };
    delay(trained.delayed, true, Clear::kNone);
    delay(trained.delayed, false, Clear::kZero);
    delay(trainable_parameters(net), true, Clear::kZero);
  }
  return ways;
}

std::string train_beside_one_process(const std::string& net, const std::vector<Way>& ways, int steps) {
  torch::set_num_threads(1);
  std::list<Reference> references;
  for (const Way& way : ways) {
    const auto same = [&](const Reference& reference) { return have_one_reference(reference.way, way); };
    auto found = std::ranges::find_if(references, same);
    if (found == references.end()) found = references.emplace(references.end(), net, way);
    found->models.emplace_back(net, way);
  }
  for (int step = 0; step < steps; ++step) {
    for (Reference& reference : references) {
      reference.backward(step);
      for (Model& model : reference.models) {
        model.backward(get_rank(), step);
        const std::string found = difference(model.net(), reference.process.net());
        if (!found.empty()) {
          return cat(net, ", way ", &model.way() - ways.data(), " (", settings_text(model.way().options),
                     "), rank ", get_rank(), " of ", get_world_size(), ", step ", step, ": ", found);
        }
        descend(model.net(), 0.05);
      }
      descend(reference.process.net(), 0.05);
    }
  }
  return {};
}

}  // namespace lockstep::testing
