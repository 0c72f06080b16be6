#include "lockstep/ddp/used_parameters.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "lockstep/ddp/logger.h"

namespace lockstep::ddp {
namespace {

std::vector<bool> read(const at::Tensor& map, std::size_t parameters) {
  std::vector<bool> used(parameters, true);
  if (!map.defined()) return used;
  const auto* bytes = map.const_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < parameters; ++i) used[i] = bytes[i] != 0;
  return used;
}

}  // namespace

void Expectation::include(const Expectation& other) {
  for (std::size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], other.times[i]);
  ends_with_backward = ends_with_backward || other.ends_with_backward;
}

at::Tensor UsedMap::bytes() const {
  at::Tensor map = at::empty({static_cast<std::int64_t>(used_.size())}, at::TensorOptions().dtype(at::kByte));
  auto* const bytes = map.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < used_.size(); ++i) bytes[i] = used_[i].load(std::memory_order_relaxed);
  return map;
}

void UsedMap::clear() {
  for (auto& used : used_) used.store(0, std::memory_order_relaxed);
}

SearchGraph::SearchGraph(const Gradients& gradients)
    : gradients_(gradients), local_(gradients.size()), anywhere_(gradients.size(), true) {}

Expectation SearchGraph::expect(std::span<const at::Tensor> outputs) {
  using torch::autograd::Node;
  Expectation found{.times = std::vector<int>(local_.size(), 0), .ends_with_backward = true};
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> left;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) left.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad())
      visit(torch::autograd::impl::gradient_edge(output).function.get());
  }
  const Accumulators& parameters = *gradients_.accumulators();
  while (!left.empty()) {
    const Node* const node = left.back();
    left.pop_back();
    if (const auto parameter = parameters.find(node); parameter != parameters.end())
      found.times[parameter->second] = 1;
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  if (last_times_.empty() && std::find(found.times.begin(), found.times.end(), 0) == found.times.end()) {
    kLog.warn(
        "find_unused_parameters is set, but the first forward pass has used every parameter. If that is "
        "always so, leave it out: every pass searches the whole graph for them, and buckets keep their "
        "first order.");
  }
  if (!last_times_.empty() && last_times_ != found.times) static_ = false;
  last_times_ = found.times;
  return found;
}

void SearchGraph::end_pass(const at::Tensor& map) {
  anywhere_ = read(map, anywhere_.size());
  local_.clear();
}

RecordFirstIteration::RecordFirstIteration(std::size_t parameters)
    : local_(parameters), times_(parameters), anywhere_(parameters, true) {}

Expectation RecordFirstIteration::expect(std::span<const at::Tensor>) {
  Expectation expected;
  if (!recorded_) {
    for (auto& times : times_) times = 0;
    expected.times.assign(times_.size(), std::numeric_limits<int>::max());
    expected.ends_with_backward = true;
    return expected;
  }
  for (const auto& times : times_) expected.times.push_back(times);
  return expected;
}

at::Tensor RecordFirstIteration::local_map() const { return recorded_ ? at::Tensor() : local_.bytes(); }

void RecordFirstIteration::end_pass(const at::Tensor& map) {
  if (recorded_) return;
  recorded_ = true;
  anywhere_ = read(map, anywhere_.size());
}

std::unique_ptr<UsedParameters> used_parameters_for(const DataParallelOptions& options,
                                                    const Gradients& gradients) {
  if (options.static_graph) return std::make_unique<RecordFirstIteration>(gradients.size());
  if (!options.find_unused_parameters) return std::make_unique<AllUsed>(gradients.size());
  return std::make_unique<SearchGraph>(gradients);
}

}  // namespace lockstep::ddp
