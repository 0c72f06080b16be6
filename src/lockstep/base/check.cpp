#include "lockstep/base/check.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "lockstep/base/text.h"

namespace lockstep::base {

void check_failed(std::string_view condition, std::string_view message, std::source_location where) {
  const std::string line = cat("lockstep: check failed at ", where.file_name(), ":", where.line(), ": ",
                               condition, message.empty() ? "" : ": ", message, "\n");
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  std::abort();
}

}  // namespace lockstep::base
