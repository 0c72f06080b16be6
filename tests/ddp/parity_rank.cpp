// One rank of parity.py, on our side.
//
//   ddp_parity_rank FOLDER   does what case.json of the folder says, with the weights and batches that lie
//   there;
//                            what comes of it each rank writes to lockstep<rank>.json, or prints for samplers
#include <torch/utils.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/ddp/sampler.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "parity_situations.h"
#include "parity_training.h"

namespace {

using nlohmann::json;

int sample(const json& cases) {
  for (const json& each : cases) {
    lockstep::SamplerOptions options{.num_replicas = each["replicas"].get<int>(),
                                     .rank = each["rank"].get<int>(),
                                     .shuffle = each["shuffle"].get<bool>(),
                                     .seed = each["seed"].get<std::uint64_t>(),
                                     .drop_last = each["drop_last"].get<bool>()};
    lockstep::DistributedSampler sampler(each["size"].get<std::size_t>(), options);
    sampler.set_epoch(each["epoch"].get<std::size_t>());
    sampler.reset();
    const auto all = sampler.next(sampler.size() + 1);
    std::cout << json(all.value_or(std::vector<std::size_t>())).dump() << "\n";
  }
  return 0;
}

}  // namespace

int main(int, char** words) {
  const std::string folder = words[1];
  json how;
  std::ifstream(folder + "/case.json") >> how;
  if (how.is_array()) return sample(how);
  try {
    const auto world = lockstep::init_process_group();
    torch::set_num_threads(1);
    const json found = how.contains("trainings") ? lockstep::testing::run_trainings(how["trainings"], folder)
                                                 : lockstep::testing::find_errors();
    std::ofstream(folder + "/lockstep" + std::to_string(lockstep::get_rank()) + ".json") << found;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
