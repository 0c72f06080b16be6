// UsedParameters knows which parameters take part in a backward pass: three ways to know it, three classes.
//
//   AllUsed               every parameter, once; the default
//   SearchGraph           those that the outputs of forward depend on; looked for in each pass
//   RecordFirstIteration  as often as in the first pass; for a graph that never changes
//
// Thread safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/ddp/gradients.h"
#include "lockstep/ddp/options.h"

namespace lockstep::ddp {

// What a backward pass is to wait for.
struct Expectation {
  // How often the gradient of each parameter is accumulated before it is final; 0: not at all.
  std::vector<int> times = {};
  // Whether the end of the backward pass makes final what is not yet so. Else it is an error.
  bool ends_with_backward = false;

  // One pass is to do for both.
  void include(const Expectation& other);
};

class UsedParameters {
 public:
  virtual ~UsedParameters() = default;

  // For the pass that begins with the graph of these outputs.
  virtual Expectation expect(std::span<const at::Tensor> outputs) = 0;
  // Whether each pass is another search, in the graph of its outputs: then all that forward returns must be
  // known, and gradients have no order that holds for the next pass.
  virtual bool searches() const = 0;
  // Whether all passes so far have used the same parameters: static_graph would do.
  virtual bool has_been_static() const = 0;
  // A gradient was accumulated, in a pass that is synchronised or not.
  virtual void accumulated(std::size_t parameter) = 0;
  // In one that is, besides.
  virtual void accumulated_in_pass(std::size_t) {}
  // By this rank, in any pass since the last synchronised one; in a static graph in any at all.
  virtual bool used_here(std::size_t parameter) const = 0;
  // For the ranks to agree on what none of them has used: one byte for each parameter. Undefined if there is
  // nothing to agree on in this pass.
  virtual at::Tensor local_map() const = 0;
  // The pass is over; `map` is the maximum of all ranks' maps, undefined if there were none.
  virtual void end_pass(const at::Tensor& map) = 0;
  // By any rank, in the pass that was ended last.
  virtual bool used_anywhere(std::size_t parameter) const = 0;
};

class AllUsed final : public UsedParameters {
 public:
  explicit AllUsed(std::size_t parameters) : parameters_(parameters) {}
  Expectation expect(std::span<const at::Tensor>) override { return {std::vector<int>(parameters_, 1)}; }
  bool searches() const override { return false; }
  bool has_been_static() const override { return true; }
  void accumulated(std::size_t) override {}
  bool used_here(std::size_t) const override { return true; }
  at::Tensor local_map() const override { return {}; }
  void end_pass(const at::Tensor&) override {}
  bool used_anywhere(std::size_t) const override { return true; }

 private:
  const std::size_t parameters_;
};

// A parameter that this rank has used in any pass since the last synchronised one counts as used.
class UsedMap {
 public:
  explicit UsedMap(std::size_t parameters) : used_(parameters) {}
  void set(std::size_t parameter) { used_[parameter].store(1, std::memory_order_relaxed); }
  bool has(std::size_t parameter) const { return used_[parameter].load(std::memory_order_relaxed) != 0; }
  at::Tensor bytes() const;
  void clear();
  std::size_t size() const { return used_.size(); }

 private:
  std::vector<std::atomic<unsigned char>> used_;
};

// Warns once if the first pass uses all of them: then the search is needless.
class SearchGraph final : public UsedParameters {
 public:
  explicit SearchGraph(const Gradients& gradients);
  Expectation expect(std::span<const at::Tensor> outputs) override;
  bool searches() const override { return true; }
  bool has_been_static() const override { return static_; }
  void accumulated(std::size_t parameter) override { local_.set(parameter); }
  bool used_here(std::size_t parameter) const override { return local_.has(parameter); }
  at::Tensor local_map() const override { return local_.bytes(); }
  void end_pass(const at::Tensor& map) override;
  bool used_anywhere(std::size_t parameter) const override { return anywhere_[parameter]; }

 private:
  const Gradients& gradients_;
  UsedMap local_;
  std::vector<bool> anywhere_;
  std::vector<int> last_times_;
  bool static_ = true;
};

class RecordFirstIteration final : public UsedParameters {
 public:
  explicit RecordFirstIteration(std::size_t parameters);
  Expectation expect(std::span<const at::Tensor> outputs) override;
  bool searches() const override { return false; }
  bool has_been_static() const override { return true; }
  void accumulated(std::size_t parameter) override { local_.set(parameter); }
  void accumulated_in_pass(std::size_t parameter) override {
    if (!recorded_) ++times_[parameter];
  }
  bool used_here(std::size_t parameter) const override { return local_.has(parameter); }
  at::Tensor local_map() const override;
  void end_pass(const at::Tensor& map) override;
  bool used_anywhere(std::size_t parameter) const override { return anywhere_[parameter]; }

 private:
  UsedMap local_;
  std::vector<std::atomic<int>> times_;  // in the first pass that is synchronised
  std::atomic<bool> recorded_ = false;
  std::vector<bool> anywhere_;
};

// As the options say.
std::unique_ptr<UsedParameters> used_parameters_for(const DataParallelOptions& options,
                                                    const Gradients& gradients);

}  // namespace lockstep::ddp
