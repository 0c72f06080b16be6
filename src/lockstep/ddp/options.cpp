#include "lockstep/ddp/options.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/groups.h"

namespace lockstep::ddp {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kDefaultCap = 25;
constexpr double kDefaultFirstCap = 1;

std::size_t bytes_of(double mb) {
  constexpr double kMostBytes = 1e18;  // fits
  return static_cast<std::size_t>(std::min(mb * kMiB, kMostBytes));
}

}  // namespace

std::string says(Rank at) { return cat("rank ", at, ": DistributedDataParallel: "); }

void refuse(const std::string& what) {
  const Rank at{tensor::get_rank()};
  throw tensor::InvalidArgument(
      Status::invalid(cat(says(at), what), {.rank = at, .op = "DistributedDataParallel"}), at);
}

void check(const DataParallelOptions& options) {
  const auto positive = [](const char* name, double mb) {
    if (!(mb > 0)) refuse(cat(name, " is ", mb, "; a bucket has more than 0 MiB."));
  };
  if (options.bucket_cap_mb) positive("bucket_cap_mb", *options.bucket_cap_mb);
  if (options.first_bucket_cap_mb) positive("first_bucket_cap_mb", *options.first_bucket_cap_mb);
  for (const double mb : options.bucket_cap_mb_list) positive("bucket_cap_mb_list", mb);
  if (!options.bucket_cap_mb_list.empty() && (options.bucket_cap_mb || options.first_bucket_cap_mb))
    refuse(
        "bucket_cap_mb_list has the size of every bucket; leave bucket_cap_mb and first_bucket_cap_mb out.");
  if (options.static_graph && options.find_unused_parameters) {
    refuse(
        "static_graph and find_unused_parameters are both set; static_graph finds unused parameters by "
        "itself, so leave find_unused_parameters out.");
  }
  if (options.skip_all_reduce_unused_params && !options.static_graph && !options.find_unused_parameters)
    refuse("skip_all_reduce_unused_params needs find_unused_parameters or static_graph.");
  if (options.delay_all_reduce_named_params.empty() != options.param_to_hook_all_reduce.empty()) {
    refuse(
        "delay_all_reduce_named_params and param_to_hook_all_reduce come together: the second says when the "
        "first are reduced.");
  }
  if (!options.param_to_hook_all_reduce.empty() && (options.static_graph || options.find_unused_parameters))
    refuse("delay_all_reduce_named_params goes with neither static_graph nor find_unused_parameters.");
}

BucketLimits limits_of(const DataParallelOptions& options) {
  if (!options.bucket_cap_mb_list.empty()) {
    BucketLimits limits;
    for (const double mb : options.bucket_cap_mb_list) limits.push_back(bytes_of(mb));
    return limits;
  }
  const double cap = options.bucket_cap_mb.value_or(kDefaultCap);
  return {bytes_of(options.first_bucket_cap_mb.value_or(options.bucket_cap_mb.value_or(kDefaultFirstCap))),
          bytes_of(cap)};
}

bool shares_buffers(const DataParallelOptions& options) {
  return options.forward_sync_buffers.has_value() || options.broadcast_buffers.value_or(true);
}

bool syncs_buffers(const DataParallelOptions& options) {
  return options.forward_sync_buffers.value_or(options.broadcast_buffers.value_or(true));
}

std::string settings_text(const DataParallelOptions& options) {
  std::vector<std::string> limits;
  for (const std::size_t limit : limits_of(options)) limits.push_back(cat(limit));
  return cat(
      "buckets of ", base::join(limits), " bytes",
      options.bucket_cap_mb_list.empty() ? "" : " from the start",
      options.find_unused_parameters ? ", find_unused_parameters" : "",
      options.static_graph ? ", static_graph" : "",
      options.skip_all_reduce_unused_params ? ", skip_all_reduce_unused_params" : "",
      syncs_buffers(options) ? "" : ", forward_sync_buffers off",
      shares_buffers(options) ? "" : ", broadcast_buffers off",
      options.sparse_parameters.empty() ? "" : cat(", ", base::join(options.sparse_parameters), " sparse"),
      options.param_to_hook_all_reduce.empty() ? ""
                                               : cat(", ", base::join(options.delay_all_reduce_named_params),
                                                     " delayed until ", options.param_to_hook_all_reduce));
}

}  // namespace lockstep::ddp
