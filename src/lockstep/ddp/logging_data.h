// What there is to say about a model that is trained on several ranks: torch's logging data, under torch's
// keys. Times are nanoseconds of the last pass that was sampled (statistics.h), and averages over all that
// were. has_error and error are there always: what has ended the model's group, if anything has; after a
// failure of a group of several hosts the call waits until they agree on it, up to 300 ms.
//
// Three keys say the same of every model, and truly: join_uneven_inputs is 0, because a pass always waits for
// all ranks; device_ids is empty and output_device -1, as torch says where device_ids = None, because nothing
// here moves inputs or outputs to a device.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lockstep::ddp {

struct LoggingData {
  std::map<std::string, std::string> texts = {};
  std::map<std::string, std::int64_t> numbers = {};

  // One object, with all keys in order. What is no UTF-8 (a variable, an error's text) is replaced.
  std::string json() const;
};

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::LoggingData;
}
