// The suite that every Backend must pass. Each rank is a process of its own, started by whatever starts the
// ranks of that backend, and runs the same tests in the same order. The program for a new backend:
//
//   int main(int argc, char** argv) {
//     return lockstep::testing::run_backend_conformance(argc, argv, "native", [] { ... });
//   }
//
//   program --table docs/backends.md          also: what is supported is what the column says
//   program --write-table docs/backends.md    puts it there
//
// --column NAME is the column's name, if it is not the backend's; GoogleTest's own arguments work too. A rank
// whose test fails leaves the others waiting, a minute at most.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/groups.h"
#include "lockstep/base/status.h"

namespace lockstep::testing {

// Joins the world that the process was started in.
using JoinGroups = std::function<Result<std::unique_ptr<Groups>>()>;
// `column` is the backend's name, and that of its column in the table. `lacks` are promises (of BackendCase)
// that it does not make: their tests are not run, and the table says so.
int run_backend_conformance(int argc, char** argv, const std::string& column, const JoinGroups& join,
                            const std::set<std::string>& lacks = {});

}  // namespace lockstep::testing
