"""Lockstep as a backend of torch.distributed.

    import torch.distributed as dist
    dist.init_process_group("lockstep")          # no import of this module is needed

This module has what torch's own interface has no place for: Store, Options, monitored_barrier, empty_resident, trace.
"""

import datetime
import os
import warnings

import torch
import torch.distributed as dist

from . import _load, _trace
from lockstep_torch_entry import register as _register

_C = _load.extension()
__version__ = _C.__version__

Options = _C.Options
ProcessGroupLockstep = _C.ProcessGroupLockstep
Store = _C.Store

__all__ = ["Options", "ProcessGroupLockstep", "Store", "empty_resident", "monitored_barrier", "trace"]

_register()


def _create(dist_backend_opts, pg_options=None):
    if pg_options is not None and not isinstance(pg_options, Options):
        raise TypeError(f"pg_options of the backend lockstep are a lockstep_torch.Options, not {type(pg_options)}.")
    # torchrun serves the store itself, longer than any rank.
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return _C.create(dist_backend_opts, pg_options, _C.is_of_rendezvous(dist_backend_opts.store) and not by_agent)


def _rendezvous(url, timeout=datetime.timedelta(seconds=300), **_):
    """init_method="lockstep://": who this rank is, and where the others are, is found as by a C++ program."""
    from urllib.parse import parse_qs, urlparse
    parts = urlparse(url)
    if parts.path not in ("", "/"):
        raise ValueError(f"{url} has the path {parts.path}, and lockstep:// takes none: it is lockstep:// alone, or "
                         "lockstep://host:port?rank=0&world_size=2; for a file, give file:// and the backend lockstep.")
    asked = {}
    for name, values in parse_qs(parts.query, keep_blank_values=True).items():
        if name not in ("rank", "world_size") or not values[0].isdecimal():
            raise ValueError(f"{url} says {name}={values[0]}, and lockstep:// takes rank and world_size, as numbers.")
        if len(values) > 1:
            raise ValueError(f"{url} says {name} {len(values)} times, and lockstep:// takes it once.")
        asked[name] = int(values[0])
    place = f"tcp://{parts.netloc}" if parts.netloc else "env://"
    store = Store(place, timeout=timeout, **asked)
    yield store, store.rank, store.world_size
    raise RuntimeError("A world that was joined by lockstep:// cannot be joined again by the same call.")


def _backend(group=None):
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("torch.distributed is not initialized: call init_process_group first.")
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"rank {dist.get_rank()} is not in the group.")
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # by torch, with TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not isinstance(backend, ProcessGroupLockstep):
        raise ValueError(f"The group is not of the backend lockstep, but of {dist.get_backend(group)}.")
    return backend


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """A barrier whose timeout names, on every rank that came, all ranks that did not. As torch's own, it does nothing on
    a rank that is not in the group."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        warnings.warn(f"monitored_barrier: rank {dist.get_rank()} is not in the group.", stacklevel=2)
        return
    _backend(group).monitored_barrier(timeout, wait_all_ranks)


def empty_resident(*size, dtype=None, group=None):
    """A tensor as torch.empty's, in memory that the other ranks of this host can reach: nothing of it is copied
    before or after a collective."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    for one in size:
        if not hasattr(one, "__index__"):
            raise TypeError(f"empty_resident: {one!r} is no size; it takes whole numbers, or one list of them.")
    return _backend(group).empty_resident(list(size), dtype or torch.get_default_dtype())


def trace(messages=False):
    """The last 2,048 collectives of this process, as bytes in the format of torch's flight recorder (a raw pickle).

    python -m torch.distributed.flight_recorder.fr_trace reads a folder with one file for each rank, named by a prefix and
    the rank. With `messages`, the last sends and receives instead."""
    return _trace.pickled(_C.traced_messages() if messages else _C.traced_collectives(), __version__)
