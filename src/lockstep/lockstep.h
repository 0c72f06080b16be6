// All of Lockstep, and of libtorch, in one header:
//
//   #include <lockstep/lockstep.h>
//
// It is the only one of ours that includes <torch/torch.h>, which costs a translation unit ten seconds. The
// headers named below each cost a part of that.
#pragma once

#include <torch/torch.h>

#include "lockstep/backend/world.h"
#include "lockstep/ddp/activation_checkpoint.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/reduction_error.h"
#include "lockstep/ddp/sampler.h"
#include "lockstep/ddp/segment_plan.h"
#include "lockstep/ddp/state_dict.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/tensor/backend_source.h"
#include "lockstep/tensor/borrowed/borrowed.h"
#include "lockstep/tensor/breakpoint.h"
#include "lockstep/tensor/coalescing.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/debug_level.h"
#include "lockstep/tensor/errors.h"
#include "lockstep/tensor/functional.h"
#include "lockstep/tensor/gradient_slot.h"
#include "lockstep/tensor/groups.h"
#include "lockstep/tensor/init.h"
#include "lockstep/tensor/messages.h"
#include "lockstep/tensor/objects.h"
#include "lockstep/tensor/observer.h"
#include "lockstep/tensor/process_group.h"
#include "lockstep/tensor/reduction.h"
#include "lockstep/tensor/resident.h"
#include "lockstep/tensor/rounds.h"
#include "lockstep/tensor/window.h"
#include "lockstep/tensor/work_handle.h"
