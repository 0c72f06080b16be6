#include "bitwise.h"

#include <torch/utils.h>

#include "lockstep/base/text.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/groups.h"
#include "one_process.h"

namespace lockstep::testing {
namespace {

void clear(Net& net, Clear how) {
  for (at::Tensor& parameter : net.parameters()) {
    if (how == Clear::kNone) {
      parameter.mutable_grad().reset();
    } else if (parameter.grad().defined() && !parameter.grad().is_sparse()) {
      parameter.mutable_grad().detach_().zero_();
    } else {
      parameter.mutable_grad().reset();
    }
  }
}

}  // namespace

std::string train_beside_one_process(const std::string& name, const Training& training) {
  torch::set_num_threads(1);
  const int rank = get_rank();
  const int size = get_world_size();
  const std::shared_ptr<Net> net = make_net(name);
  DistributedDataParallel model(net, training.options);
  OneProcess reference(name, size, syncs_buffers(training.options) ? Buffers::kOfTheFirst : Buffers::kOfEach);
  for (int step = 0; step < training.steps; ++step) {
    clear(*net, training.clear);
    clear(reference.net(), training.clear);
    for (int part = 1; part < training.accumulated; ++part) {
      const auto guard = model.no_sync();
      model(net->batch(rank, step * training.accumulated + part - 1)).backward();
    }
    model(net->batch(rank, (step + 1) * training.accumulated - 1)).backward();
    reference.backward(step, training.accumulated);
    reference.show_buffers_of(rank);
    const std::string found = difference(*net, reference.net());
    if (!found.empty()) return cat(name, ", rank ", rank, " of ", size, ", step ", step, ": ", found);
    descend(*net, 0.05);
    descend(reference.net(), 0.05);
  }
  return {};
}

}  // namespace lockstep::testing
