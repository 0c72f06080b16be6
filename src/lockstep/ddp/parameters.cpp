#include "lockstep/ddp/parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/base/text.h"
#include "lockstep/ddp/options.h"
#include "lockstep/object/fields.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/objects.h"
#include "lockstep/tensor/operation.h"
#include "lockstep/tensor/overlap.h"
#include "lockstep/tensor/purpose.h"

namespace lockstep::ddp {

// What a rank tells the others of a parameter, buffer or gradient.
struct TensorFacts {
  std::string name;
  std::string facts;  // in words, to be compared and to be shown
};
LOCKSTEP_OBJECT(TensorFacts, name, facts)

struct ModelFacts {
  std::vector<TensorFacts> parameters;
  std::vector<TensorFacts> buffers;
  std::vector<TensorFacts> gradients;
  std::string settings;
  std::string refusal;      // empty, or all that the rank has to say
  std::int64_t number = 0;  // of the models of its process
};
LOCKSTEP_OBJECT(ModelFacts, parameters, buffers, gradients, settings, refusal, number)

namespace {

constexpr std::size_t kChunk = std::size_t{250} << 20;

std::string layout_text(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "Nested";
  std::ostringstream text;
  text << tensor.layout();
  return text.str();
}

std::string facts_text(const at::Tensor& tensor) {
  return cat(c10::toString(tensor.scalar_type()), " of shape ", tensor::shape_text(tensor.sizes()),
             " and strides ", tensor::shape_text(tensor.strides()));
}

std::vector<TensorFacts> facts_of(const NamedTensors& tensors, std::string_view without_gradient) {
  std::vector<TensorFacts> all;
  for (const auto& [name, tensor] : tensors)
    all.push_back({name, cat(facts_text(tensor), tensor.requires_grad() ? "" : without_gradient)});
  return all;
}

// Empty if there is none. `what`: "parameter".
std::string difference(const std::vector<TensorFacts>& first, const std::vector<TensorFacts>& other,
                       Rank from, std::string_view what) {
  const std::size_t both = std::min(first.size(), other.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (first[i].name != other[i].name)
      return cat("has the ", what, ' ', base::quoted(other[i].name), " where rank ", from, " has ",
                 base::quoted(first[i].name));
    if (first[i].facts != other[i].facts)
      return cat("has the ", what, ' ', base::quoted(other[i].name), " as ", other[i].facts, ", rank ", from,
                 " as ", first[i].facts);
  }
  if (first.size() > both)
    return cat("has no ", what, ' ', base::quoted(first[both].name), ", which rank ", from, " has");
  if (other.size() > both)
    return cat("has the ", what, ' ', base::quoted(other[both].name), ", which rank ", from, " has not");
  return {};
}

std::string difference(const ModelFacts& first, const ModelFacts& other, Rank from) {
  if (first.settings != other.settings)
    return cat("has other options: ", other.settings, "; rank ", from, " has: ", first.settings);
  std::string found = difference(first.parameters, other.parameters, from, "parameter");
  if (found.empty()) found = difference(first.buffers, other.buffers, from, "buffer");
  return found.empty() ? difference(first.gradients, other.gradients, from, "gradient of") : found;
}

// Of what another rank has, which this one throws too.
[[noreturn]] void refuse_for(Rank other, std::string_view what) {
  const Rank at{tensor::get_rank()};
  throw tensor::InvalidArgument(
      Status::invalid(cat(says(at), what), {.rank = at, .peer = other, .op = "DistributedDataParallel"}), at);
}

// Takes the bytes of tensors to a flat buffer, or back.
class Flat {
 public:
  Flat(const std::vector<at::Tensor>& tensors, std::size_t bytes)
      : tensors_(tensors),
        buffer_(at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte))) {}
  const at::Tensor& buffer() const { return buffer_; }
  void pack() const {
    auto* to = static_cast<std::byte*>(buffer_.mutable_data_ptr());
    for (const at::Tensor& tensor : tensors_) {
      if (tensor.numel() == 0) continue;  // which may have no memory
      const at::Tensor source = tensor.contiguous();
      std::memcpy(to, source.const_data_ptr(), source.nbytes());
      to += source.nbytes();
    }
  }
  void unpack() const {
    const auto* from = static_cast<const std::byte*>(buffer_.const_data_ptr());
    for (const at::Tensor& tensor : tensors_) {
      if (tensor.numel() == 0) continue;
      const at::Tensor data = tensor.variable_data();  // with a version counter of its own
      if (data.is_contiguous()) {
        std::memcpy(data.mutable_data_ptr(), from, data.nbytes());
      } else {
        const at::Tensor whole = at::empty(data.sizes(), data.options());
        std::memcpy(whole.mutable_data_ptr(), from, whole.nbytes());
        data.copy_(whole);
      }
      from += data.nbytes();
    }
  }

 private:
  const std::vector<at::Tensor>& tensors_;
  const at::Tensor buffer_;
};

void broadcast_chunk(const std::vector<at::Tensor>& tensors, std::size_t bytes,
                     const tensor::ProcessGroup& group, std::uint64_t purpose) {
  if (bytes == 0) return;
  if (tensors.size() == 1 && tensors.front().is_contiguous()) {
    tensor::broadcast_for(purpose, tensors.front().variable_data(), {.group_src = 0, .group = group});
    return;
  }
  const Flat flat(tensors, bytes);
  if (group.rank() == 0) flat.pack();
  tensor::broadcast_for(purpose, flat.buffer(), {.group_src = 0, .group = group});
  if (group.rank() != 0) flat.unpack();
}

}  // namespace

NamedTensors without_repeats(NamedTensors tensors, const std::vector<std::string>& ignored) {
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto unwanted = [&](const auto& named) {
    return !named.second.defined() || std::binary_search(ignored.begin(), ignored.end(), named.first) ||
           !seen.insert(named.second.unsafeGetTensorImpl()).second;
  };
  tensors.erase(std::remove_if(tensors.begin(), tensors.end(), unwanted), tensors.end());
  return tensors;
}

std::string why_not_shared(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_nested())
    return cat("has the layout ", layout_text(tensor),
               ", but ranks share dense tensors; name it in parameters_and_buffers_to_ignore, or keep it "
               "dense.");
  if (!tensor.is_non_overlapping_and_dense() && tensor::overlaps_itself(tensor))
    return "has elements that are one place in memory, as after expand(); name it in "
           "parameters_and_buffers_to_ignore, or clone() it.";
  return {};
}

std::int64_t check_same_on_all_ranks(const ModelParts& own, const tensor::ProcessGroup& group) {
  static std::atomic<std::int64_t> models = 0;
  ModelFacts facts{.parameters = facts_of(own.parameters, " that needs no gradient"),
                   .buffers = facts_of(own.buffers, ""),
                   .gradients = {},
                   .settings = own.settings,
                   .refusal = {},
                   .number = ++models};
  for (const auto& [name, plan] : own.gradients) facts.gradients.push_back({name, plan});
  std::vector<ModelFacts> all;
  tensor::all_gather_object(all, facts, {.group = group});
  const auto rank_of = [&](std::size_t place) { return Rank{group.ranks()[place]}; };
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::string_view why = all[r].refusal;
    if (why.empty()) continue;
    if (const std::string who = says(rank_of(r)); why.starts_with(who)) why.remove_prefix(who.size());
    refuse_for(rank_of(r), cat("rank ", rank_of(r), " has refused: ", why));
  }
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::string found = difference(all.front(), all[r], rank_of(0));
    if (!found.empty())
      refuse_for(rank_of(r), cat("the models differ: rank ", rank_of(r), ' ', found,
                                 ". Wrap the same module with the same options on all ranks."));
  }
  return all.front().number;
}

void tell_refusal(std::string_view why, const tensor::ProcessGroup& group) {
  try {
    ModelFacts facts;
    facts.refusal = why;
    std::vector<ModelFacts> all;
    tensor::all_gather_object(all, facts, {.group = group});
  } catch (
      const std::exception&) {  // the refusal is what the caller can mend; a group says again that it is dead
  }
}

ParameterSnapshot::ParameterSnapshot(const NamedTensors& parameters) {
  for (const auto& [name, tensor] : parameters) {
    known_.push_back({name, tensor, tensor.scalar_type(), tensor.device(), tensor.sizes().vec()});
  }
}

std::string ParameterSnapshot::difference_to(const NamedTensors& now) const {
  std::unordered_map<const c10::TensorImpl*, const at::Tensor*> left;
  for (const auto& named : now) left.emplace(named.second.unsafeGetTensorImpl(), &named.second);
  for (const Known& known : known_) {
    const auto found = left.find(known.tensor.unsafeGetTensorImpl());
    if (found == left.end())
      return cat("the parameter ", base::quoted(known.name), " was removed or replaced");
    const at::Tensor& tensor = *found->second;
    left.erase(found);
    if (!tensor.requires_grad())
      return cat("the parameter ", base::quoted(known.name), " no longer needs a gradient");
    if (tensor.scalar_type() != known.dtype || tensor.device() != known.device ||
        tensor.sizes() != known.sizes)
      return cat("the parameter ", base::quoted(known.name), " has another type, device or shape");
  }
  for (const auto& [name, tensor] : now) {
    if (tensor.requires_grad() && left.contains(tensor.unsafeGetTensorImpl()))
      return cat("the parameter ", base::quoted(name), " is new, or needs a gradient that it did not need");
  }
  return {};
}

OrderOfFirst::OrderOfFirst(const std::vector<std::size_t>& own, const tensor::ProcessGroup& group)
    : order_(at::empty({static_cast<std::int64_t>(own.size())}, at::TensorOptions().dtype(at::kLong))) {
  static_assert(sizeof(std::size_t) == sizeof(std::int64_t));
  std::memcpy(order_.mutable_data_ptr(), own.data(), own.size() * sizeof(std::size_t));
  if (own.size() > 1)  // else there is one order
    work_ = tensor::broadcast(order_, {.group_src = 0, .group = group, .async_op = true});
}

std::vector<std::size_t> OrderOfFirst::get() const {
  work_.wait();
  std::vector<std::size_t> numbers(static_cast<std::size_t>(order_.numel()));
  std::memcpy(numbers.data(), order_.const_data_ptr(), numbers.size() * sizeof(std::size_t));
  return numbers;
}

void broadcast_from_first(const NamedTensors& tensors, const tensor::ProcessGroup& group,
                          std::uint64_t purpose) {
  if (group.size() < 2) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> chunk;
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t more = tensor.nbytes();
    if (bytes + more > kChunk) {
      broadcast_chunk(chunk, bytes, group, purpose);
      chunk.clear();
      bytes = 0;
    }
    chunk.push_back(tensor);
    bytes += more;
  }
  broadcast_chunk(chunk, bytes, group, purpose);
}

}  // namespace lockstep::ddp
