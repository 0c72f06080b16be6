// What a bench leaves: its report as a file, and a line on the terminal while it runs.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::bench {

// kInvalid if `path` cannot be written; nothing happens if it is empty.
Status write_report(const std::string& path, const std::string& text);
// The same question, asked before an hour of measuring. An existing file is left as it is.
Status check_writable(const std::string& path);

// One line that is written over and over, on stderr and only if that is a terminal. Empty: takes it away.
void show_progress(const std::string& line);

// 12.345 with two digits is "12.35".
std::string rounded(double value, int digits);

}  // namespace lockstep::bench
