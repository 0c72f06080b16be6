// 09: what a training program does with gradients beside the plain step: accumulate them over several batches
// before they travel, send them as 16 bits, and reduce them in a way of one's own.
//
// Run on three ranks:
//   lockstep run --nproc 3 build/release/examples/09_accumulation_and_hooks
//
// Prints what expected_output.txt has; the order of the lines differs.

#include <lockstep/lockstep.h>

#include <iostream>
#include <sstream>
#include <stdexcept>

namespace {

constexpr std::int64_t kInputs = 4;

// Every rank and every step has other numbers; they are whole, so that sums are exact.
at::Tensor batch(int rank, int step) { return torch::full({2, kInputs}, rank + 2. * step + 1); }

std::shared_ptr<torch::nn::LinearImpl> fresh_net() {
  return torch::nn::Linear(torch::nn::LinearOptions(kInputs, 1).bias(false)).ptr();
}

void say(const std::string& what) {
  std::ostringstream line;
  line << "rank " << lockstep::get_rank() << ": " << what << "\n";
  std::cout << line.str() << std::flush;
}

std::string gradient_of(const torch::nn::LinearImpl& net) {
  std::ostringstream text;
  text << net.weight.grad()[0][0].item<double>();
  return text.str();
}

// Four batches are one step. Only the last of them communicates.
void accumulate(int rank) {
  const auto net = fresh_net();
  lockstep::DistributedDataParallel model(net);
  int operations = 0;
  const auto watching = lockstep::observe([&](const lockstep::OperationEvent& event) {
    if (event.phase == lockstep::OperationPhase::kPre) ++operations;
  });
  for (int part = 0; part < 3; ++part) {
    const auto guard = model.no_sync();  // decided when forward runs
    model(batch(rank, part)).sum().backward();
  }
  say("accumulated on its own: " + gradient_of(*net) + ", after " + std::to_string(operations) +
      " operations");
  model(batch(rank, 3)).sum().backward();
  say("the mean over ranks of four batches: " + gradient_of(*net) + ", after " + std::to_string(operations) +
      " operation");
}

// A hook of one's own: the sum instead of the mean, and a look at what travels.
void sum_instead_of_mean(int rank) {
  const auto net = fresh_net();
  lockstep::DistributedDataParallel model(net);
  model.register_comm_hook([](lockstep::GradBucket& bucket) {
    say("bucket " + std::to_string(bucket.index()) + " has " + std::to_string(bucket.buffer().numel()) +
        " numbers of " + std::to_string(bucket.parameters().size()) + " parameter");
    return lockstep::HookWork{lockstep::all_reduce(bucket.buffer(), {.async_op = true})};
  });
  model(batch(rank, 0)).sum().backward();
  say("the sum over ranks: " + gradient_of(*net));
}

void as_16_bits(int rank) {
  const auto net = fresh_net();
  lockstep::DistributedDataParallel model(net);
  model.register_comm_hook(lockstep::bf16_compress_hook());
  model(batch(rank, 0)).sum().backward();
  say("as 16 bits: " + gradient_of(*net));
}

}  // namespace

int main() {
  try {
    const auto world = lockstep::init_process_group();
    const int rank = lockstep::get_rank();
    accumulate(rank);
    sum_instead_of_mean(rank);
    as_16_bits(rank);
  } catch (const std::invalid_argument& error) {  // such as RANK=x
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
