"""Makes "gloo" mean Lockstep in this process.

torch's tests ask for the backend's name to decide what to expect of it, and skip themselves where they do not know it.
So the name stays: torch makes its groups by the class ProcessGroupGloo, and that name stands for ours here. The helper
group of TORCH_DISTRIBUTED_DEBUG=DETAIL, which torch makes beside every backend, stays gloo's.
"""

import torch.distributed.distributed_c10d as c10d

import lockstep_torch

_gloo = c10d.ProcessGroupGloo
_new_group = c10d._new_process_group_helper
_new_wrapper = c10d._create_process_group_wrapper
_asked = {}  # of the group that is being made


class _Kind(type):
    def __instancecheck__(cls, group):
        return isinstance(group, lockstep_torch.ProcessGroupLockstep)

    def __call__(cls, store, rank, size, timeout):
        given = c10d._DistributedBackendOptions()
        given.store, given.group_rank, given.group_size, given.timeout = store, rank, size, timeout
        given.group_id, given.global_ranks_in_group = _asked["name"], _asked["ranks"]
        options = lockstep_torch.Options()
        options.stall_after = timeout  # no rank is taken for stopped because the machine is busy
        group = lockstep_torch._create(given, options)
        group.set_profiling_name("gloo")
        return group


class _InPlaceOfGloo(metaclass=_Kind):
    pass


def _note_and_make(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs):
    _asked.update(name=group_name, ranks=global_ranks_in_group)
    return _new_group(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs)


def _wrap_with_gloo(*args, **kwargs):
    c10d.ProcessGroupGloo = _gloo
    try:
        return _new_wrapper(*args, **kwargs)
    finally:
        c10d.ProcessGroupGloo = _InPlaceOfGloo


def install():
    c10d.ProcessGroupGloo = _InPlaceOfGloo
    c10d._new_process_group_helper = _note_and_make
    c10d._create_process_group_wrapper = _wrap_with_gloo
