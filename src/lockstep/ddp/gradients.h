// The gradients of one model: who they belong to, where they are, and the buckets that they travel in.
// Internal. Thread safety: as GradBucket and GradientSlot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/ddp/bucket.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/heap_top.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/parameters.h"
#include "lockstep/tensor/gradient_slot.h"

namespace lockstep::ddp {

// The nodes of the graph that accumulate the gradients of a model, and of which parameter each does.
using Accumulators = std::unordered_map<const torch::autograd::Node*, std::size_t>;

struct Gradient {
  std::string name;  // of the parameter: "layers.0.weight"
  std::unique_ptr<tensor::GradientSlot> slot;
  PlannedGradient planned;
  std::vector<std::int64_t> strides;  // in its bucket; as all ranks had them when they met
  bool sparse_by_module = false;      // and not by an option
};

class Gradients {
 public:
  Gradients() = default;
  // Of all `parameters`, which need gradients. `sparse`: by name, besides those of the options.
  // InvalidArgument where the options name what is not there.
  Gradients(const NamedTensors& parameters, const DataParallelOptions& options,
            const std::vector<std::string>& sparse);

  std::size_t size() const { return all_.size(); }
  const std::string& name(std::size_t parameter) const { return all_[parameter].name; }
  tensor::GradientSlot& slot(std::size_t parameter) { return *all_[parameter].slot; }
  const PlannedGradient& planned_of(std::size_t parameter) const { return all_[parameter].planned; }
  const std::vector<std::int64_t>& strides_of(std::size_t parameter) const { return all_[parameter].strides; }
  // Whether it is sparse because of the kind of its module.
  bool is_sparse_by_module(std::size_t parameter) const { return all_[parameter].sparse_by_module; }
  std::vector<PlannedGradient> planned() const;
  // Shared, because graphs outlive their model.
  const std::shared_ptr<const Accumulators>& accumulators() const { return accumulators_; }
  // Before forward: goes over to what accumulates in its graph.
  void follow_parameters();
  // The gradient that lets those go that are delayed (bucket_plan.h); nothing if there are none.
  std::optional<std::size_t> delay_ends_with() const { return delay_ends_with_; }
  // '"a" and "b"', '"a", "b" and 7 others'.
  std::string names_text(const std::vector<std::size_t>& parameters) const;

  const BucketPlan& plan() const { return plan_; }
  std::size_t buckets() const { return buckets_.size(); }
  GradBucket& bucket(std::size_t index) { return *buckets_[index]; }
  struct Place {
    std::size_t bucket = 0;
    std::size_t place = 0;
  };
  Place place(std::size_t parameter) const { return places_[parameter]; }

  // Copies a gradient to its place in its bucket, whose shape and type it has.
  void fill(std::size_t parameter, const at::Tensor& gradient) {
    buckets_[places_[parameter].bucket]->fill(places_[parameter].place, gradient, *copy_choice_);
    heap_top_->saw(gradient);
  }

  // Makes the buckets of the plan. Gradients that are views of the old ones keep their numbers: they move.
  void lay_out(BucketPlan plan);

 private:
  std::vector<Gradient> all_;
  std::shared_ptr<const Accumulators> accumulators_;
  std::optional<std::size_t> delay_ends_with_;
  BucketPlan plan_;
  std::vector<std::unique_ptr<GradBucket>> buckets_;  // by pointer: a hook may keep a reference until `then`
  std::vector<Place> places_;
  std::unique_ptr<collective::CopyChoice> copy_choice_ = std::make_unique<collective::CopyChoice>();
  std::unique_ptr<HeapTop> heap_top_ = std::make_unique<HeapTop>();
};

}  // namespace lockstep::ddp
