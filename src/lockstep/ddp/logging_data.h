// What there is to say about a model that is trained on several ranks: torch's logging data, under torch's
// keys. Times are nanoseconds of the last pass that was sampled (statistics.h), and averages over all that
// were.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lockstep::ddp {

struct LoggingData {
  std::map<std::string, std::string> texts = {};
  std::map<std::string, std::int64_t> numbers = {};

  // One object, with all keys in order.
  std::string json() const;
};

}  // namespace lockstep::ddp

namespace lockstep {
using ddp::LoggingData;
}
