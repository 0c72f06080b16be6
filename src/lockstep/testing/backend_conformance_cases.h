// The parts of the suite, for backend_conformance.cpp.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/backend/groups.h"
#include "lockstep/base/bytes.h"
#include "lockstep/collective/call.h"
#include "lockstep/testing/support_table.h"

namespace lockstep::testing {

// One test, run by all ranks of `groups` at once.
struct BackendCase {
  std::string suite;
  std::string name;
  std::function<void(Groups& groups, SupportTable& table)> body;
  // What a backend may leave out, as a row of the table; empty: nothing.
  std::string promise = {};
};
std::vector<BackendCase> reduction_cases();
std::vector<BackendCase> move_cases();
std::vector<BackendCase> order_cases();
std::vector<BackendCase> message_cases();
std::vector<BackendCase> group_cases();

// For loops over ranks, types and operations.
inline std::size_t index_of(int number) { return static_cast<std::size_t>(number); }
// The elements of `type` that stand for small whole numbers. A complex one has half of it, if that is whole,
// as its imaginary part.
Buffer elements_of(DType type, const std::vector<int>& numbers);
// Bytes that tell who sent which buffer to whom.
Buffer pattern(std::size_t size, int from, int to, std::size_t buffer);

}  // namespace lockstep::testing
