// How a module is trained on many ranks. What torch has too has its name and default there, but for
// gradient_as_bucket_view, which is on here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/tensor/gradient_slot.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::ddp {

struct DataParallelOptions {
  // Behaviour.
  tensor::ProcessGroup process_group = {};  // else the default group
  // Parameters that the outputs of forward do not depend on are looked for in each pass.
  bool find_unused_parameters = false;
  // The graph is the same in every pass: parameters are used as often as in the first, or never.
  bool static_graph = false;
  // Gradients are the bucket's memory; else copies of it.
  bool gradient_as_bucket_view = true;
  // Whether construction checks the parameters of all ranks against each other, and takes those of rank 0.
  // Without it nothing is sent: the others do not hear of what one rank refuses.
  bool init_sync = true;
  // Whether buffers are rank 0's before each forward (default true). The older broadcast_buffers = false also
  // leaves them out of init_sync; it is ignored where both are given.
  std::optional<bool> forward_sync_buffers = {};
  std::optional<bool> broadcast_buffers = {};
  // By name: neither reduced nor broadcast. What belongs to a DistributedDataParallel inside need not be
  // named.
  std::vector<std::string> parameters_and_buffers_to_ignore = {};
  // By name: their gradients are sparse. That of an Embedding or EmbeddingBag that says so is known.
  std::vector<std::string> sparse_parameters = {};
  // A bucket of which no parameter is used is not reduced; all ranks must always use the same.
  bool skip_all_reduce_unused_params = false;
  // By name: gradients that are not reduced as they become ready, but together, when that of
  // param_to_hook_all_reduce is accumulated; until then they may be accumulated as often as one likes. Both
  // are given or none, and neither with find_unused_parameters nor with static_graph.
  std::vector<std::string> delay_all_reduce_named_params = {};
  std::string param_to_hook_all_reduce = {};
  tensor::GradientSlotMaker gradient_slot = {};  // else a parameter's own .grad

  // Performance.
  // MiB that a bucket has at most, or a little more; 25 by default, and 1 for the first, which ends backward
  // sooner. Given, it holds for the first too.
  std::optional<double> bucket_cap_mb = {};
  // By bucket; the last holds for those that follow. Buckets are made by it from the start.
  std::vector<double> bucket_cap_mb_list = {};
  std::optional<double> first_bucket_cap_mb = {};
  // Gradients are copied to a bucket when all of them are there, instead of one by one.
  bool batched_grad_copy = false;
};

// Internal.
// Throws InvalidArgument for options that cannot be.
void check(const DataParallelOptions& options);
BucketLimits limits_of(const DataParallelOptions& options);
// Whether buffers are rank 0's after construction, and whether they are before each forward.
bool shares_buffers(const DataParallelOptions& options);
bool syncs_buffers(const DataParallelOptions& options);
// What must be the same on all ranks, in words.
std::string settings_text(const DataParallelOptions& options);
// "rank 2: DistributedDataParallel: ", with which every refusal begins.
std::string says(Rank at);
// InvalidArgument.
[[noreturn]] void refuse(const std::string& what);

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::DataParallelOptions;
}
