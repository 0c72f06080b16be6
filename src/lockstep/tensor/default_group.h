// The one global of Lockstep: the session that this process is in. Internal.
//
// Thread safety: any thread.
#pragma once

#include <memory>

#include "lockstep/tensor/session.h"

namespace lockstep::tensor {

// InvalidArgument, in the name of `call`, before init_process_group() and after destroy_process_group().
std::shared_ptr<Session> current_session(const char* call);
std::shared_ptr<GroupState> default_group(const char* call);
// Nothing if there is none.
std::shared_ptr<Session> find_session();

}  // namespace lockstep::tensor
