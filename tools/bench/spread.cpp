#include "tools/bench/spread.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"

namespace lockstep::bench {
namespace {

Spread spread_of(std::vector<double> values, double outer) {
  LOCKSTEP_CHECK(!values.empty(), "nothing was measured");
  std::sort(values.begin(), values.end());
  const auto at = [&values](double share) {
    return values[static_cast<std::size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return {.low = at(outer), .median = at(0.5), .high = at(1 - outer)};
}

}  // namespace

Spread quartiles_of(std::vector<double> values) { return spread_of(std::move(values), 0.25); }
Spread range_of(std::vector<double> values) { return spread_of(std::move(values), 0); }

}  // namespace lockstep::bench
