#include "lockstep/tensor/groups.h"

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/tensor/default_group.h"
#include "lockstep/tensor/errors.h"

namespace lockstep::tensor {
namespace {

template <typename... Args>
[[noreturn]] void refuse(const char* call, const Args&... what) {
  const Rank at{default_group(call)->rank()};
  throw_error(Status::invalid(cat("rank ", at, ": ", call, ": ", what...), {.rank = at, .op = call}), at);
}

// What is asked about or divided. One that has ended is refused: its ranks may be others' by now.
std::shared_ptr<GroupState> open_group(const char* call, const ProcessGroup& group) {
  std::shared_ptr<GroupState> state = group.state(call);
  state->check_open(call);
  return state;
}

NewGroup new_group_of(const NewGroupOptions& options) {
  return {.name = options.group_name,
          .description = options.group_desc,
          .timeout = options.timeout,
          .backend = options.backend};
}

ProcessGroup make(const char* call, std::vector<int> ranks, const NewGroupOptions& options) {
  if (options.sort_ranks) std::sort(ranks.begin(), ranks.end());
  return ProcessGroup(current_session(call)->make_group(call, ranks, new_group_of(options)));
}

// Groups that come from `parent` have its backends.
NewGroupOptions like(const GroupState& parent, NewGroupOptions options) {
  if (!options.backend) options.backend = parent.backend_text();
  return options;
}

// All lists are looked at before a group is made of one of them.
void check_lists(const char* call, const char* argument, const std::vector<std::vector<int>>& lists,
                 const GroupState& of) {
  if (lists.empty()) refuse(call, argument, " is empty.");
  std::set<int> seen;
  for (const std::vector<int>& list : lists) {
    if (list.empty()) refuse(call, argument, " has an empty list.");
    for (const int rank : list) {
      if (rank < 0 || rank >= of.size()) {
        refuse(call, "rank ", rank, " in ", argument, " is not one of the ", of.size(),
               " ranks of the group ", base::quoted(of.name()), ".");
      }
      if (!seen.insert(rank).second) refuse(call, "rank ", rank, " is in ", argument, " twice.");
    }
  }
}

Subgroups make_own(const char* call, std::vector<std::vector<int>> lists, const NewGroupOptions& options) {
  const int own = default_group(call)->rank();
  for (const std::vector<int>& list : lists) {
    if (std::find(list.begin(), list.end(), own) == list.end()) continue;
    ProcessGroup group = make(call, list, options);
    return {.current = std::move(group), .ranks = std::move(lists)};
  }
  return {.current = ProcessGroup::non_member(), .ranks = std::move(lists)};
}

}  // namespace

int get_rank(const ProcessGroup& group) { return group.state("get_rank")->rank(); }
int get_world_size(const ProcessGroup& group) { return group.state("get_world_size")->size(); }
int get_node_local_rank() { return current_session("get_node_local_rank")->local_rank(); }
std::string get_backend(const ProcessGroup& group) { return group.state("get_backend")->backend_text(); }
std::string get_backend_config(const ProcessGroup& group) { return group.backend_config(); }
int get_pg_count() { return current_session("get_pg_count")->group_count(); }
void set_timeout(Duration timeout, const ProcessGroup& group) { group.set_timeout(timeout); }

std::string get_default_backend_for_device(c10::DeviceType device) {
  if (device == c10::DeviceType::CPU) return "native";
  throw_error(Status::invalid(cat("get_default_backend_for_device: device: there is no backend for ",
                                  c10::DeviceTypeName(device, /*lower_case=*/true), ".")),
              {});
}

int get_group_rank(const ProcessGroup& group, int global_rank) {
  const auto state = open_group("get_group_rank", group);
  const int rank = state->group_rank_of(global_rank);
  if (rank < 0) {
    refuse("get_group_rank", "rank ", global_rank, " is no member of the group ", base::quoted(state->name()),
           ".");
  }
  return rank;
}

int get_global_rank(const ProcessGroup& group, int group_rank) {
  const auto state = open_group("get_global_rank", group);
  if (group_rank < 0 || group_rank >= state->size()) {
    refuse("get_global_rank", "rank ", group_rank, " is not one of the ", std::max(state->size(), 0),
           " ranks of the group ", base::quoted(state->name()), ".");
  }
  return state->ranks()[static_cast<std::size_t>(group_rank)];
}

std::vector<int> get_process_group_ranks(const ProcessGroup& group) { return group.ranks(); }

ProcessGroup new_group(const NewGroupOptions& options) {
  return make("new_group", default_group("new_group")->ranks(), options);
}

ProcessGroup new_group(std::vector<int> ranks, const NewGroupOptions& options) {
  return make("new_group", std::move(ranks), options);
}

ProcessGroup new_group(std::initializer_list<int> ranks, const NewGroupOptions& options) {
  return new_group(std::vector<int>(ranks), options);
}

Subgroups new_subgroups(std::optional<int> group_size, const NewGroupOptions& options,
                        const ProcessGroup& group) {
  constexpr const char* kCall = "new_subgroups";
  const auto parent = open_group(kCall, group);
  if (!parent->is_member()) return {.current = ProcessGroup::non_member(), .ranks = {}};
  if (!group_size && parent != default_group(kCall)) {
    refuse(kCall,
           "group_size is needed for another group than the default one: it is not known where the ranks of ",
           base::quoted(parent->name()), " are.");
  }
  const auto session = current_session(kCall);
  const int size = group_size ? *group_size : session->local_size();
  if (size <= 0 || parent->size() % size != 0) {
    refuse(kCall, "group_size is ", size, ", which does not divide the ", parent->size(),
           " ranks of the group ", base::quoted(parent->name()), ".");
  }
  if (!group_size && parent->rank() % size != session->local_rank()) {
    refuse(
        kCall,
        "the ranks of this host are not consecutive, or another host has more or fewer; give group_size, or "
        "use new_subgroups_by_enumeration().");
  }
  std::vector<std::vector<int>> lists;
  const std::vector<int>& ranks = parent->ranks();
  for (auto from = ranks.begin(); from != ranks.end(); from += size) lists.emplace_back(from, from + size);
  return make_own(kCall, std::move(lists), options);
}

Subgroups new_subgroups_by_enumeration(const std::vector<std::vector<int>>& ranks_per_subgroup,
                                       const NewGroupOptions& options) {
  constexpr const char* kCall = "new_subgroups_by_enumeration";
  check_lists(kCall, "ranks_per_subgroup", ranks_per_subgroup, *default_group(kCall));
  return make_own(kCall, ranks_per_subgroup, options);
}

ProcessGroup split_group(const std::vector<std::vector<int>>& split_ranks, const ProcessGroup& parent,
                         const NewGroupOptions& options) {
  constexpr const char* kCall = "split_group";
  const auto state = open_group(kCall, parent);
  if (!state->is_member()) return ProcessGroup::non_member();
  check_lists(kCall, "split_ranks", split_ranks, *state);
  std::vector<std::vector<int>> lists;
  for (const std::vector<int>& split : split_ranks) {
    std::vector<int>& list = lists.emplace_back();
    for (const int rank : split) list.push_back(state->ranks()[static_cast<std::size_t>(rank)]);
  }
  return make_own(kCall, std::move(lists), like(*state, options)).current;
}

ProcessGroup split_group(std::initializer_list<std::vector<int>> split_ranks, const ProcessGroup& parent,
                         const NewGroupOptions& options) {
  return split_group(std::vector<std::vector<int>>(split_ranks), parent, options);
}

ProcessGroup split_group(const SplitBy& by, const ProcessGroup& parent, const NewGroupOptions& options) {
  return ProcessGroup(
      current_session("split_group")->split(parent.state("split_group"), by, new_group_of(options)));
}

ProcessGroup shrink_group(const std::vector<int>& ranks_to_exclude, const ProcessGroup& group,
                          const NewGroupOptions& options) {
  constexpr const char* kCall = "shrink_group";
  const auto session = current_session(kCall);
  const auto state = open_group(kCall, group);
  if (!state->is_member()) return ProcessGroup::non_member();
  if (state == session->default_group())
    return ProcessGroup(session->shrink(ranks_to_exclude, new_group_of(options)));
  if (!ranks_to_exclude.empty()) check_lists(kCall, "ranks_to_exclude", {ranks_to_exclude}, *state);
  std::vector<int> left;
  for (int i = 0; i < state->size(); ++i) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), i) == ranks_to_exclude.end())
      left.push_back(state->ranks()[static_cast<std::size_t>(i)]);
  }
  return make(kCall, std::move(left), like(*state, options));
}

}  // namespace lockstep::tensor
