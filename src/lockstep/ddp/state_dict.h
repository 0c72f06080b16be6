// Weights that were saved by a Python program with torch.save(model.state_dict(), path), for a C++ module.
#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace lockstep::ddp {

// Every parameter and buffer of the module takes the tensor of its name, also where all names in the file
// begin with "module.", as those of Python's DistributedDataParallel do, and the module has none of them.
// InvalidArgument, and nothing is changed, if one is missing, has another shape, or is left over; it names
// them.
void load_state_dict(torch::nn::Module& module, const std::string& path);

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::load_state_dict;
}
