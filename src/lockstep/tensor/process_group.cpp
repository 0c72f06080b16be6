#include "lockstep/tensor/process_group.h"

#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/group_state.h"

namespace lockstep::tensor {

ProcessGroup ProcessGroup::non_member() {
  const auto session = find_session();
  return ProcessGroup(GroupState::non_member(session ? session->default_group()->rank() : -1));
}

std::shared_ptr<GroupState> ProcessGroup::state(const char* call) const {
  return state_ ? state_ : default_group(call);
}

bool ProcessGroup::is_member() const { return state("is_member")->is_member(); }
int ProcessGroup::rank() const { return state("get_rank")->rank(); }
int ProcessGroup::size() const { return state("get_world_size")->size(); }
std::string ProcessGroup::name() const { return state("name")->name(); }
std::string ProcessGroup::description() const { return state("description")->description(); }
std::vector<int> ProcessGroup::ranks() const { return state("get_process_group_ranks")->ranks(); }
std::string ProcessGroup::backend_name(c10::DeviceType device) const {
  return state("get_backend")->backend_name(device);
}
std::string ProcessGroup::backend_config() const { return state("get_backend_config")->config(); }
Duration ProcessGroup::timeout() const { return state("timeout")->any_backend("timeout")->timeout(); }
void ProcessGroup::set_timeout(Duration timeout) const { state("set_timeout")->set_timeout(timeout); }
std::shared_ptr<Backend> ProcessGroup::backend(c10::DeviceType device) const {
  return state("backend")->backend("backend", device);
}

bool ProcessGroup::operator==(const ProcessGroup& other) const {
  return state("operator==") == other.state("operator==");
}

}  // namespace lockstep::tensor
