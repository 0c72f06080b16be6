// Who is who, and groups of fewer ranks.
//
// A group is made by its members alone, or by all ranks as in torch: ranks that are not members get
// ProcessGroup::non_member() at once, and nobody waits for them.
// Order: groups without a name are matched by the order in which their members make them, so one thread makes
// them; a second thread that makes one meanwhile is refused (InvalidArgument). Groups with a name are matched
// by it, and any thread may make them at any time.
//
// Thread safety: any thread.
// Errors: InvalidArgument before init_process_group(), and for ranks that are none.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/backend/world.h"
#include "lockstep/base/clock.h"
#include "lockstep/tensor/process_group.h"

namespace lockstep::tensor {

struct NewGroupOptions {
  // Behaviour.
  std::optional<Duration> timeout = {};        // of an operation; else the default group's
  std::optional<std::string> group_name = {};  // else made from the members
  std::string group_desc = {};
  // As InitOptions::backend: those of the default group, or of InitOptions::group_backends. By default the
  // default group's, and in split_group() and shrink_group() the parent's.
  std::optional<std::string> backend = {};
  bool sort_ranks = true;  // else a rank in the group is the place in the list
};

// -1 for a non-member.
int get_rank(const ProcessGroup& group = {});
int get_world_size(const ProcessGroup& group = {});
// Among the ranks of this host.
int get_node_local_rank();
// As it was given to init_process_group() or new_group(): "native", "cpu:native,cuda:mine".
std::string get_backend(const ProcessGroup& group = {});
// For each device: "cpu:native".
std::string get_backend_config(const ProcessGroup& group = {});
std::string get_default_backend_for_device(c10::DeviceType device);
// How many groups there are, the default group included.
int get_pg_count();
void set_timeout(Duration timeout, const ProcessGroup& group = {});

// The rank in `group` of a global rank, and the other way round. InvalidArgument if it is no member.
int get_group_rank(const ProcessGroup& group, int global_rank);
int get_global_rank(const ProcessGroup& group, int group_rank);
// Global ranks, by rank in the group.
std::vector<int> get_process_group_ranks(const ProcessGroup& group = {});

// Of global ranks; without any, of all.
ProcessGroup new_group(const NewGroupOptions& options = {});
ProcessGroup new_group(std::vector<int> ranks, const NewGroupOptions& options = {});
ProcessGroup new_group(std::initializer_list<int> ranks, const NewGroupOptions& options = {});

// This rank's own subgroup, and the global ranks of all of them.
struct Subgroups {
  ProcessGroup current;
  std::vector<std::vector<int>> ranks;
};
// Consecutive ranks of `group`, `group_size` at a time, which must divide its size. Without it as many as
// this host has, for the default group: the ranks of each host, where a host has consecutive ranks and each
// as many.
Subgroups new_subgroups(std::optional<int> group_size = {}, const NewGroupOptions& options = {},
                        const ProcessGroup& group = {});
// No rank may be in two lists; who is in none gets non_member().
Subgroups new_subgroups_by_enumeration(const std::vector<std::vector<int>>& ranks_per_subgroup,
                                       const NewGroupOptions& options = {});

// Ranks of `parent`, as ranks in it. No rank may be in two lists; who is in none gets non_member().
ProcessGroup split_group(const std::vector<std::vector<int>>& split_ranks, const ProcessGroup& parent = {},
                         const NewGroupOptions& options = {});
ProcessGroup split_group(std::initializer_list<std::vector<int>> split_ranks, const ProcessGroup& parent = {},
                         const NewGroupOptions& options = {});
// As MPI does it, a collective of `parent`: ranks of one colour form a group, in the order of their keys.
ProcessGroup split_group(const SplitBy& by, const ProcessGroup& parent = {},
                         const NewGroupOptions& options = {});

// The group without these of its ranks, which need not call it. Of the default group: all who are left agree
// on who that is (World::shrink), also after a failure; the result is the new default group, global ranks are
// new, and every earlier group is destroyed. Of another group: a new group of the rest of its ranks.
ProcessGroup shrink_group(const std::vector<int>& ranks_to_exclude, const ProcessGroup& group = {},
                          const NewGroupOptions& options = {});

}  // namespace lockstep::tensor

namespace lockstep {
using tensor::get_backend;
using tensor::get_backend_config;
using tensor::get_default_backend_for_device;
using tensor::get_global_rank;
using tensor::get_group_rank;
using tensor::get_node_local_rank;
using tensor::get_pg_count;
using tensor::get_process_group_ranks;
using tensor::get_rank;
using tensor::get_world_size;
using tensor::new_group;
using tensor::new_subgroups;
using tensor::new_subgroups_by_enumeration;
using tensor::NewGroupOptions;
using tensor::set_timeout;
using tensor::shrink_group;
using tensor::split_group;
using tensor::Subgroups;
}  // namespace lockstep
