// The reference: one process that trains as all ranks together, with the gradients of the ranks added in
// their order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nets.h"

namespace lockstep::testing {

// With whose buffers the forward of each rank's last batch of a step begins; the others begin with its own.
enum class Buffers { kOfTheFirst, kOfEach };

class OneProcess {
 public:
  OneProcess(const std::string& net, int ranks, Buffers begin_with = Buffers::kOfTheFirst)
      : net_(make_net(net)), ranks_(ranks), begin_with_(begin_with) {}

  // Leaves the mean of all ranks' gradients in the parameters of net(). A parameter that no rank has used
  // keeps what it has. `accumulated`: the batches of so many steps are added up on each rank before.
  void backward(int step, int accumulated = 1);
  Net& net() { return *net_; }
  // The buffers of net() become those that a rank has after its forward of the last step: what its batches
  // have made of those it began with. Until the next backward().
  void show_buffers_of(int rank);

 private:
  const std::shared_ptr<Net> net_;
  const int ranks_;
  const Buffers begin_with_;
  std::vector<std::vector<at::Tensor>> buffers_;  // by rank, after its last forward
};

// Plain SGD, by hand: no optimizer's own rules between what is compared.
void descend(Net& net, double rate);
// "" if all parameters, gradients and buffers are bitwise equal, else what differs.
std::string difference(const Net& a, const Net& b);

}  // namespace lockstep::testing
