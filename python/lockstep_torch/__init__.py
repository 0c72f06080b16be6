"""Lockstep as a backend of torch.distributed.

    import torch.distributed as dist
    dist.init_process_group("lockstep")          # no import of this module is needed

This module has what torch's own interface has no place for: Store, Options, monitored_barrier, empty_resident, trace.
"""

import atexit
import datetime

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
atexit.register(_C.leave_all)


def _create(dist_backend_opts, pg_options=None):
    if pg_options is not None and not isinstance(pg_options, Options):
        raise TypeError(f"pg_options of the backend lockstep are a lockstep_torch.Options, not {type(pg_options)}.")
    return _C.create(dist_backend_opts, pg_options)


def _rendezvous(url, timeout=datetime.timedelta(seconds=300), **_):
    """init_method="lockstep://": who this rank is, and where the others are, is found as by a C++ program."""
    from urllib.parse import parse_qs, urlparse
    parts = urlparse(url)
    asked = {name: int(values[0]) for name, values in parse_qs(parts.query).items() if name in ("rank", "world_size")}
    place = f"tcp://{parts.netloc}" if parts.netloc else "env://"
    store = Store(place, timeout=timeout, **asked)
    yield store, store.rank, store.world_size
    raise RuntimeError("A world that was joined by lockstep:// cannot be joined again by the same call.")


def _backend(group=None):
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("torch.distributed is not initialized: call init_process_group first.")
    backend = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, ProcessGroupLockstep):
        raise ValueError(f"The group is not of the backend lockstep, but of {dist.get_backend(group)}.")
    return backend


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """A barrier whose timeout names, on every rank that came, all ranks that did not."""
    _backend(group).monitored_barrier(timeout, wait_all_ranks)


def empty_resident(*size, dtype=None, group=None):
    """A tensor as torch.empty's, in memory that the other ranks of this host can reach: nothing of it is copied
    before or after a collective."""
    if len(size) == 1 and not isinstance(size[0], int):
        size = tuple(size[0])
    return _backend(group).empty_resident(list(size), dtype or torch.get_default_dtype())


def trace(messages=False):
    """The last 2,048 collectives of this process, as bytes in the format of torch's flight recorder (a raw pickle).

    python -m torch.distributed.flight_recorder.fr_trace reads a folder with one file for each rank, named by a prefix and
    the rank. With `messages`, the last sends and receives instead."""
    return _trace.pickled(_C.traced_messages() if messages else _C.traced_collectives(), __version__)
