// What debug level detail checks of an operation. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/backend/backend.h"
#include "lockstep/base/bytes.h"
#include "lockstep/collective/call.h"
#include "lockstep/tensor/group_state.h"

namespace lockstep::tensor {

// "tensor has 3 NaN among its 100 elements, the first at 17", or nothing.
std::string describe_nan(const at::Tensor& tensor, const std::string& name);

// Whether all ranks must have the same outputs. Not of a reduction by a backend that promises no order.
bool same_on_all_ranks(OpKind kind, const std::string& backend);

// A collective, on all ranks: compares the checksums of their outputs. kCorruptFrame names, on all ranks,
// those whose outputs differ from what most have.
Status compare_outputs(Backend& backend, const GroupState& state, const char* call,
                       std::span<const ByteSpan> outputs, const OpOptions& options);

// The C++ stack of this call, as text to be put behind a message.
std::string stack_text();

}  // namespace lockstep::tensor
