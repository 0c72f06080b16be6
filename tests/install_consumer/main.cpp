// Uses something of the installed core; the test looks for the line it prints.
#include <cstdio>

#include "lockstep/base/status.h"

int main() {
  const auto status = lockstep::base::Status::invalid("a consumer outside the tree");
  std::printf("%s\n", status.text().c_str());
  return status.ok() ? 1 : 0;
}
