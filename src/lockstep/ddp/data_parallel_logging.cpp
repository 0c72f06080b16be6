#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>

#include "lockstep/base/environment.h"
#include "lockstep/base/text.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/tensor/default_group.h"

namespace lockstep::ddp {
namespace {

template <typename Numbers>
std::string list_text(const Numbers& numbers, std::string_view separator = ", ") {
  std::vector<std::string> texts;
  texts.reserve(numbers.size());
  for (const auto number : numbers) texts.push_back(cat(number));
  return base::join(texts, separator);
}

// By torch's keys; "N/A" for what is not set, as there.
std::map<std::string, std::string> environment_texts() {
  constexpr std::array kNames = {"MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCH_DISTRIBUTED_DEBUG",
                                 "CUDA_VISIBLE_DEVICES",
                                 "GLOO_SOCKET_IFNAME",
                                 "GLOO_DEVICE_TRANSPORT",
                                 "NCCL_SOCKET_IFNAME",
                                 "TORCH_NCCL_BLOCKING_WAIT",
                                 "NCCL_DEBUG",
                                 "NCCL_NTHREADS",
                                 "NCCL_IB_TIMEOUT",
                                 "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                                 "OMP_NUM_THREADS",
                                 "LOCKSTEP_SOCKET_IFNAME"};
  const auto session = tensor::current_session("logging_data");
  const auto& variables = session->variables();
  std::map<std::string, std::string> texts;
  for (const std::string_view name : kNames) {
    std::string key(name.starts_with("TORCH_NCCL") ? name.substr(6) : name);
    for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const auto found = variables.find(name);
    texts.emplace(std::move(key), found == variables.end() ? "N/A" : found->second);
  }
  return texts;
}

// "NAME=value" of each that is set and says how a job was started, or how it communicates and computes.
std::vector<std::string> environment_dump() {
  constexpr std::array<std::string_view, 8> kNames = {"RANK",
                                                      "LOCAL_RANK",
                                                      "WORLD_SIZE",
                                                      "MASTER_ADDR",
                                                      "MASTER_PORT",
                                                      "CUDA_VISIBLE_DEVICES",
                                                      "TORCH_DISTRIBUTED_DEBUG",
                                                      "LOCKSTEP_SOCKET_IFNAME"};
  constexpr std::array<std::string_view, 4> kPrefixes = {"GLOO_", "NCCL_", "TORCH_NCCL_", "OMP_"};
  std::vector<std::string> texts;
  const auto session = tensor::current_session("DistributedDataParallel");
  for (const auto& [name, value] : session->variables()) {
    const auto begins_name = [&variable = name](std::string_view prefix) {
      return variable.starts_with(prefix);
    };
    if (std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
        std::any_of(kPrefixes.begin(), kPrefixes.end(), begins_name))
      texts.push_back(cat(name, '=', value));
  }
  return texts;
}

}  // namespace

std::string DataParallel::introduction() const {
  std::size_t bytes = 0;
  for (const PlannedGradient& gradient : gradients_.planned()) bytes += gradient.bytes();
  return cat("DDP initialized with ", module_->type_name(), ": ", gradients_.size(), " parameters, ",
             Bytes{bytes}, ", ", gradients_.buckets(), " buckets, world of ", group_.size(), ", ",
             settings_text(options_), "; ", base::join(environment_dump()));
}

void DataParallel::set_runtime_logging_sample_rate(int rate) {
  if (rate < 1) refuse(cat("set_runtime_logging_sample_rate: the rate is ", rate, "; it is at least 1."));
  watch_.statistics().set_sample_rate(rate);
}

LoggingData DataParallel::logging_data() const {
  LoggingData data;
  const std::vector<PlannedGradient> planned = gradients_.planned();
  std::size_t bytes = 0;
  std::set<std::string> dtypes;  // in torch's order
  for (const PlannedGradient& gradient : planned) {
    bytes += gradient.bytes();
    dtypes.emplace(c10::scalarTypeToTypeMeta(gradient.dtype).name());  // "float"
  }
  const bool several_devices = std::any_of(planned.begin(), planned.end(), [&](const auto& gradient) {
    return gradient.device != planned.front().device;
  });
  std::size_t unused = 0;
  for (std::size_t i = 0; i < planned.size(); ++i) {
    if (!used_->used_anywhere(i)) unused += planned[i].bytes();
  }
  std::vector<std::string> buckets;
  for (const auto& bucket : gradients_.plan().buckets) buckets.push_back(list_text(bucket, " "));
  const auto sizes = [&](const BucketPlan& plan) { return list_text(bucket_sizes(plan, planned)); };

  const Statistics::Sample sample = watch_.statistics().sample();
  const BucketLimits limits = limits_of(options_);
  const Status failure = group_.backend()->failure();
  data.texts = {{"module_name", module_->type_name()},
                {"backend_name", group_.backend_name()},
                {"dtypes", base::join({dtypes.begin(), dtypes.end()})},
                {"bucket_sizes", sizes(schedule_.first_plan(gradients_))},
                {"initial_bucket_size_limits", list_text(limits)},
                {"comm_hook", hook_->name()},
                {"error", failure.ok() ? "" : std::string(failure.message())},
                {"prev_iteration_grad_ready_order_indices", list_text(sample.ready_order)},
                {"device_ids", ""},
                {"rebuilt_bucket_sizes", has_rebuilt_buckets() ? sizes(gradients_.plan()) : ""},
                {"rebuilt_per_bucket_param_indices", has_rebuilt_buckets() ? base::join(buckets) : ""}};
  data.texts.merge(environment_texts());
  const auto flag = [](bool set) { return static_cast<std::int64_t>(set); };
  const auto count = [](std::size_t number) { return static_cast<std::int64_t>(number); };
  const Statistics::Times& last = sample.last;
  const Statistics::Times& average = sample.average;
  const auto nanoseconds = [](Duration time) { return std::chrono::nanoseconds(time).count(); };
  const auto moment = [&](base::TimePoint at) { return nanoseconds(at.time_since_epoch()); };
  data.numbers = {{"rank", group_.rank()},
                  {"world_size", group_.size()},
                  {"iteration", watch_.statistics().iterations()},
                  {"num_parameter_tensors", count(planned.size())},
                  {"total_parameter_size_bytes", count(bytes)},
                  {"unused_parameter_size", count(unused)},
                  {"bucket_cap_bytes", count(*std::max_element(limits.begin(), limits.end()))},
                  {"num_buckets_reduced", count(sample.buckets_reduced)},
                  {"has_error", flag(!failure.ok())},
                  {"has_rebuilt_buckets", flag(has_rebuilt_buckets())},
                  {"find_unused_parameters", flag(options_.find_unused_parameters)},
                  {"static_graph", flag(options_.static_graph)},
                  {"can_set_static_graph", flag(used_->has_been_static())},
                  {"gradient_as_bucket_view", flag(options_.gradient_as_bucket_view)},
                  {"broadcast_buffers", flag(buffers_.on())},
                  {"has_sync_bn", flag(module_->has_sync_batch_norm())},
                  {"join_uneven_inputs", 0},
                  {"is_multi_device_module", flag(several_devices)},
                  {"output_device", -1},
                  {"forward_compute_time_start", moment(sample.moments.forward)},
                  {"backward_compute_time_start", moment(sample.moments.backward)},
                  {"backward_compute_time_end", moment(sample.moments.last_ready)},
                  {"backward_comm_time_start", moment(sample.moments.first_launch)},
                  {"backward_comm_time_end", moment(sample.moments.finished)},
                  {"forward_compute_time", nanoseconds(last.forward)},
                  {"backward_compute_time", nanoseconds(last.backward)},
                  {"backward_comm_time", nanoseconds(last.communication)},
                  {"backward_compute_comm_overlap_time", nanoseconds(last.overlap)},
                  {"avg_forward_compute_time", nanoseconds(average.forward)},
                  {"avg_backward_compute_time", nanoseconds(average.backward)},
                  {"avg_backward_comm_time", nanoseconds(average.communication)},
                  {"avg_backward_compute_comm_overlap_time", nanoseconds(average.overlap)}};
  return data;
}

}  // namespace lockstep::ddp
