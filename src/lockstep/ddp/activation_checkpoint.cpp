#include "lockstep/ddp/activation_checkpoint.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"

namespace lockstep::ddp::checkpointing {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;

[[noreturn]] void refuse(const std::string& what) {
  const Rank at{tensor::get_rank()};
  throw tensor::InvalidArgument(
      Status::invalid(cat("rank ", at, ": checkpoint: ", what), {.rank = at, .op = "checkpoint"}), at);
}

// As the engine holds its nodes, which changed between versions of torch.
template <typename T, typename... Parts>
auto make_node(Parts&&... parts) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<T>(std::forward<Parts>(parts)...);
  } else {
    return std::make_shared<T>(std::forward<Parts>(parts)...);
  }
}

// What a function draws its random numbers from, and how autocast is set: as it was, and there again.
class Surroundings {
 public:
  Surroundings(const Tensors& inputs, bool with_random_numbers) {
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      autocast_[i] = {at::autocast::is_autocast_enabled(kTypes[i]),
                      at::autocast::get_autocast_dtype(kTypes[i])};
    }
    if (!with_random_numbers) return;
    remember(at::Device(at::kCPU));
    for (const at::Tensor& input : inputs) {
      if (input.defined()) remember(input.device());
    }
  }
  void restore() const {
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      at::autocast::set_autocast_enabled(kTypes[i], autocast_[i].enabled);
      at::autocast::set_autocast_dtype(kTypes[i], autocast_[i].dtype);
    }
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::scoped_lock lock(generator.mutex());
      generator.set_state(state);
    }
  }
  // The same, as it is now.
  Surroundings now() const {
    Surroundings current({}, false);
    for (const auto& [device, state] : states_) current.remember(device);
    return current;
  }

 private:
  static constexpr std::array kTypes = {at::kCPU, at::kCUDA};
  struct Autocast {
    bool enabled = false;
    at::ScalarType dtype = at::kFloat;
  };

  void remember(at::Device device) {
    for (const auto& known : states_) {
      if (known.first == device) return;
    }
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::scoped_lock lock(generator.mutex());
    states_.emplace_back(device, generator.get_state());
  }

  std::array<Autocast, kTypes.size()> autocast_;
  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

// Which nodes of a graph a run of the function has made: its own thread's, since `from`.
class MadeSince {
 public:
  MadeSince() : from_(at::sequence_number::peek()), thread_(at::RecordFunction::currentThreadId()) {}
  bool contains(const Node& node) const {
    constexpr auto kLeaf = std::numeric_limits<std::uint64_t>::max();  // of what accumulates gradients
    return node.sequence_nr() != kLeaf && node.sequence_nr() >= from_ && node.thread_id() == thread_;
  }

 private:
  const std::uint64_t from_;
  const std::uint64_t thread_;
};

// Calls `leaves` for each edge that goes from inside to the outside, with what may be put in its place.
template <typename Leaves>
void each_edge_out(edge_list& roots, const MadeSince& inside, const Leaves& leaves) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> left;
  const auto follow = [&](edge_list& edges) {
    for (Edge& edge : edges) {
      if (!edge.is_valid()) continue;
      if (!inside.contains(*edge.function)) {
        leaves(edge);
      } else if (seen.insert(edge.function.get()).second) {
        left.push_back(edge.function.get());
      }
    }
  };
  follow(roots);
  while (!left.empty()) {
    Node* const node = left.back();
    left.pop_back();
    follow(node->next_edges());
  }
}

// Takes a gradient that flows out of the second run, where the engine captures it. Unlike the node that it
// stands for, it has no hooks: those are called once, by the pass that goes on from here.
struct Sink final : Node {
  explicit Sink(const Edge& stands_for) {
    const auto& like = stands_for.function->input_metadata(stands_for.input_nr);
    add_input_metadata(like.options(), like.shape_as_dim_vector(), like.is_tensor_subclass(),
                       like.is_nested_tensor(), like.grad_dtype());
  }
  variable_list apply(variable_list&&) override { return {}; }
};

// What both kinds have in common: what it takes to run the function again.
class Checkpoint : public Node {
 public:
  Checkpoint(edge_list&& next, const CheckpointOptions& options, const Tensors& inputs,
             Surroundings surroundings, Part again)
      : Node(std::move(next)),
        options_(options),
        inputs_(inputs),
        surroundings_(std::move(surroundings)),
        again_(std::move(again)) {}

  void note_versions(std::vector<std::int64_t> versions) { versions_ = std::move(versions); }
  void release_variables() override {
    inputs_.clear();
    again_ = {};
  }

 protected:
  const Tensors& inputs() const {
    if (!again_) {
      refuse(
          "backward runs a second time through what was freed after the first; say retain_graph = true in "
          "the first.");
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].defined() || inputs_[i].is_inference()) continue;
      if (inputs_[i]._version() != versions_[i])
        refuse(cat("input ", i, " was changed in place after forward, so the function cannot be run again."));
    }
    return inputs_;
  }
  // The outputs of another run, in the surroundings of the first.
  Tensors run_again(const Tensors& given) const {
    const Surroundings now = surroundings_.now();
    struct Restore {
      const Surroundings& to;
      ~Restore() { to.restore(); }
    } const restore{now};
    surroundings_.restore();
    const at::AutoGradMode grad(true);
    Tensors outputs = again_(given);
    if (outputs.size() != num_inputs())
      refuse(cat("the function gave ", num_inputs(), " tensors, and ", outputs.size(),
                 " when it was run again."));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto& first = input_metadata(i);
      if (!first.was_default_constructed() && !first.is_same_shape(outputs[i]))
        refuse(cat("output ", i, " of the function had another shape when it was run again."));
    }
    return outputs;
  }
  struct Roots {
    edge_list edges;
    variable_list gradients;
  };
  // Where a backward pass through the second run begins: at the outputs for which there is a gradient.
  static Roots roots_of(const Tensors& outputs, const variable_list& gradients) {
    Roots roots;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.edges.push_back(gradient_edge(outputs[i]));
      roots.gradients.push_back(gradients[i]);
    }
    return roots;
  }

  const CheckpointOptions options_;

 private:
  Tensors inputs_;
  std::vector<std::int64_t> versions_;  // of the inputs, before the first run
  const Surroundings surroundings_;
  Part again_;
};

// Its edges are those that left the graph of the first run.
class KnownEdges final : public Checkpoint {
 public:
  template <typename... Parts>
  explicit KnownEdges(const edge_list& edges, Parts&&... parts)
      : Checkpoint(edge_list(edges), std::forward<Parts>(parts)...), edges_(edges) {}
  std::string name() const override { return "Checkpoint"; }

  variable_list apply(variable_list&& gradients) override {
    const MadeSince inside;
    Roots roots = roots_of(run_again(inputs()), gradients);
    if (roots.edges.empty()) return variable_list(num_outputs());
    std::unordered_map<Edge, Edge> sinks;
    edge_list captured;
    for (const Edge& edge : edges_) {
      captured.emplace_back(make_node<Sink>(edge), 0);
      sinks.emplace(edge, captured.back());
    }
    std::vector<std::pair<Edge*, Edge>> replaced;
    each_edge_out(roots.edges, inside, [&](Edge& edge) {
      const auto sink = sinks.find(edge);
      if (sink == sinks.end())
        refuse("the function used a parameter or tensor when it was run again that it had not used before.");
      replaced.emplace_back(&edge, std::exchange(edge, sink->second));
    });
    const bool differentiable = at::GradMode::is_enabled();
    variable_list results = Engine::get_default_engine().execute(
        roots.edges, roots.gradients, /*keep_graph=*/differentiable, /*create_graph=*/differentiable,
        /*accumulate_grad=*/false, captured);
    // The derivatives of these lead through the second run, and on.
    for (auto& [edge, original] : replaced) *edge = std::move(original);
    return results;
  }

 private:
  // A copy: where checkpoints are nested, the outer one has sinks in the place of the node's own meanwhile.
  const edge_list edges_;
};

class InnerBackward final : public Checkpoint {
 public:
  using Checkpoint::Checkpoint;
  std::string name() const override { return "ReentrantCheckpoint"; }

  variable_list apply(variable_list&& gradients) override {
    if (!Engine::get_default_engine().is_checkpoint_valid() || at::GradMode::is_enabled()) {
      refuse(
          "reentrant = true works with backward() alone, not with autograd::grad(), create_graph or inside "
          "of a checkpoint that is not reentrant; leave it out.");
    }
    Tensors given;
    for (const at::Tensor& input : inputs()) {
      given.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad()) : input);
    }
    const Roots roots = roots_of(run_again(given), gradients);
    if (!roots.edges.empty()) {
      Engine::get_default_engine().execute(roots.edges, roots.gradients, /*keep_graph=*/false,
                                           /*create_graph=*/false, /*accumulate_grad=*/true);
    }
    variable_list results;
    for (const at::Tensor& input : given) results.push_back(input.defined() ? input.grad() : input);
    return results;
  }
};

std::vector<std::int64_t> versions_of(const Tensors& tensors) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& tensor : tensors) {
    const bool counts = tensor.defined() && !tensor.is_inference();
    versions.push_back(counts ? tensor._version() : 0);
  }
  return versions;
}

// The same values, as what `node` has made.
template <typename NodePtr>
Tensors with_history(const Tensors& outputs, const std::vector<bool>& has_gradient, const NodePtr& node) {
  Tensors fresh;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor output = outputs[i].defined() ? outputs[i].detach() : outputs[i];
    if (has_gradient[i]) {
      torch::autograd::create_gradient_edge(output, node);
    } else {
      node->add_input_metadata(Node::undefined_input());
    }
    fresh.push_back(std::move(output));
  }
  return fresh;
}

Tensors run_with_known_edges(const CheckpointOptions& options, const Tensors& inputs, const Part& first,
                             Part again) {
  Surroundings surroundings(inputs, options.preserve_rng_state);
  std::vector<std::int64_t> versions = versions_of(inputs);
  const MadeSince inside;
  Tensors outputs = first(inputs);
  std::vector<bool> has_gradient;
  edge_list roots;
  for (const at::Tensor& output : outputs) {
    has_gradient.push_back(output.defined() && output.requires_grad());
    if (has_gradient.back()) roots.push_back(gradient_edge(output));
  }
  if (roots.empty()) return outputs;
  edge_list out;
  std::unordered_set<Edge> known;
  each_edge_out(roots, inside, [&](const Edge& edge) {
    if (known.insert(edge).second) out.push_back(edge);
  });
  const auto node = make_node<KnownEdges>(out, options, inputs, std::move(surroundings), std::move(again));
  node->note_versions(std::move(versions));
  return with_history(outputs, has_gradient, node);
}

Tensors run_reentrant(const CheckpointOptions& options, const Tensors& inputs, const Part& first,
                      Part again) {
  const auto needs = [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  if (std::none_of(inputs.begin(), inputs.end(), needs)) {
    refuse(
        "reentrant = true, but no input needs a gradient, so the parameters inside would get none; leave "
        "reentrant out, or set requires_grad on an input.");
  }
  Surroundings surroundings(inputs, options.preserve_rng_state);
  std::vector<std::int64_t> versions = versions_of(inputs);
  Tensors outputs;
  {
    const at::NoGradGuard no_grad;
    outputs = first(inputs);
  }
  const auto node = make_node<InnerBackward>(torch::autograd::collect_next_edges(inputs), options, inputs,
                                             std::move(surroundings), std::move(again));
  node->note_versions(std::move(versions));
  std::vector<bool> has_gradient;
  for (const at::Tensor& output : outputs) {
    has_gradient.push_back(output.defined() && (output.is_floating_point() || output.is_complex()));
  }
  return with_history(outputs, has_gradient, node);
}

}  // namespace

Tensors run(const CheckpointOptions& options, const Tensors& inputs, const Part& first, Part again) {
  if (!at::GradMode::is_enabled()) return first(inputs);
  return options.reentrant ? run_reentrant(options, inputs, first, std::move(again))
                           : run_with_known_edges(options, inputs, first, std::move(again));
}

}  // namespace lockstep::ddp::checkpointing
