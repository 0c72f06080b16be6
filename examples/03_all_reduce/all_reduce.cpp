// 03: four ranks sum a vector, without libtorch.
//
// Run:
//   lockstep run --nproc 4 build/release/examples/03_all_reduce
//
// Prints (the order of the lines differs):
//   [rank 0] the sum over 4 ranks is 10
//   [rank 1] the sum over 4 ranks is 10
//   [rank 2] the sum over 4 ranks is 10
//   [rank 3] the sum over 4 ranks is 10
//
// A project of its own needs find_package(Lockstep REQUIRED COMPONENTS core) and
// target_link_libraries(... Lockstep::core).

#include <iostream>
#include <string>
#include <vector>

#include "lockstep/backend/operations.h"
#include "lockstep/backend/world.h"

int main() {
  const auto world = lockstep::World::join();  // alone, a world of one
  if (!world.ok()) {
    std::cerr << world.status().text() << "\n";
    return world.status().code() == lockstep::Code::kInvalid ? 2 : 1;  // 2: such as RANK=x
  }
  std::vector<float> data(1000, static_cast<float>((*world)->rank().value + 1));
  const lockstep::Status status = lockstep::all_reduce((*world)->group(), std::span(data));
  if (!status.ok()) {
    std::cerr << status.text() << "\n";
    return 1;
  }
  std::cout << "the sum over " + std::to_string((*world)->size().value) + " ranks is " +
                   std::to_string(static_cast<int>(data[0])) + "\n";
}
