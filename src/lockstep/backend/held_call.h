// A call that waits for its turn, after the one who made it has gone on.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/collective/call.h"

namespace lockstep::backend {

// Its lists of buffers are its own; the bytes behind them are kept, if `kept` keeps them.
struct HeldCall {
  HeldCall(const Call& given, std::shared_ptr<const void> kept)
      : call(given),
        inputs(given.inputs.begin(), given.inputs.end()),
        outputs(given.outputs.begin(), given.outputs.end()),
        keep(std::move(kept)) {
    call.inputs = inputs;
    call.outputs = outputs;
  }
  Call call;
  const std::vector<ByteView> inputs;
  const std::vector<ByteSpan> outputs;
  const std::shared_ptr<const void> keep;
};

}  // namespace lockstep::backend
