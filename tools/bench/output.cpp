#include "tools/bench/output.h"

#include <unistd.h>

#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "lockstep/base/text.h"

namespace lockstep::bench {
namespace {

Status not_writable(const std::string& path) {
  return Status::invalid(cat("the report cannot be written to ", base::quoted(path)));
}

}  // namespace

Status write_report(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? Status() : not_writable(path);
}

Status check_writable(const std::string& path) {
  if (path.empty()) return {};
  const std::ofstream file(path, std::ios::app);
  return file ? Status() : not_writable(path);
}

void show_progress(const std::string& line) {
  if (isatty(STDERR_FILENO) == 1) std::cerr << "\r\x1b[K" << line << std::flush;
}

std::string rounded(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

}  // namespace lockstep::bench
