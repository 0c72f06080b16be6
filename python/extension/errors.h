// Our errors as torch's exceptions, with our text.
//
//   InvalidArgument                          ValueError
//   Unsupported                              NotImplementedError
//   DistStoreError, QueueEmptyError          torch.distributed.DistStoreError, QueueEmptyError
//   a world that could not be joined         torch.distributed.DistNetworkError
//   whatever ends a group, or a timeout      torch.distributed.DistBackendError
//
// Thread safety: any thread.
#pragma once

#include <exception>
#include <utility>

#include "extension/rank_names.h"
#include "lockstep/base/status.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::python {

// Of an operation.
std::exception_ptr torch_exception(const Status& status);
[[noreturn]] void throw_torch(const Status& status);
// Of what happens before there is a group.
[[noreturn]] void throw_not_joined(const Status& status);

// What `body` gives; our exceptions leave it as torch's, and say which of torch's ranks they speak of.
template <typename Body>
auto translated(const RankNames& names, const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const tensor::InvalidArgument& error) {
    throw_torch(names.told(error.status()));
  } catch (const tensor::DistError& error) {
    throw_torch(names.told(error.status()));
  }
}

}  // namespace lockstep::python
