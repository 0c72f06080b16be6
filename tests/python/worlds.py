"""Worlds of forked ranks, for tests of lockstep-torch. torch is imported once, before the first fork."""

import datetime
import os
import pathlib
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where there is a GPU, torch would take it for programs on CPU tensors

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import lockstep_torch  # noqa: E402  loaded once, for all ranks

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "world"))

from rendezvous_rank import free_port  # noqa: E402, F401  for those who use this

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
PATIENCE = datetime.timedelta(seconds=120)


def options():
    """No rank is taken for stopped, however busy the machine is."""
    given = lockstep_torch.Options()
    given.stall_after = PATIENCE
    return given


def spawned(rank, size, port):
    """A rank of torch.multiprocessing.spawn, which finds it by its module."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("lockstep", rank=rank, world_size=size, timeout=PATIENCE, pg_options=options())
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    assert value.item() == size * (size + 1) / 2, value
    dist.destroy_process_group()


def error_of(call):
    """The class and the text of what a call raises."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("nothing was raised")


class World:
    """Runs a function in so many processes that have a default group; gives what each returns, by rank."""

    def __init__(self, size, backend="lockstep", joins=True):
        self.size, self.backend, self.joins = size, backend, joins

    def run(self, body, *args, dies=()):
        """Ranks in `dies` may end without a result, which is then None; any other that does fails the test."""
        with tempfile.TemporaryDirectory() as folder:
            ranks = [self._start(rank, folder, body, args) for rank in range(self.size)]
            try:
                results = [self._result(rank, pipe, dies) for rank, (_, pipe) in enumerate(ranks)]
            finally:
                for pid, _ in ranks:
                    self._reap(pid)
        errors = [f"rank {rank}:\n{value}" for rank, (ok, value) in enumerate(results) if not ok]
        if errors:
            raise AssertionError("\n".join(errors))
        return [value for _, value in results]

    def _start(self, rank, folder, body, args):
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writer)
            return pid, reader
        os.close(reader)
        try:
            if self.joins:
                dist.init_process_group(self.backend, init_method=f"file://{folder}/job", rank=rank,
                                        world_size=self.size, timeout=PATIENCE, pg_options=options() if self.backend == "lockstep" else None)
            value = (True, body(rank, self.size, *args))
            if dist.is_initialized():
                dist.destroy_process_group()
        except BaseException:
            value = (False, traceback.format_exc())
        with os.fdopen(writer, "wb") as out:
            pickle.dump(value, out)
        os._exit(0)

    def _result(self, rank, pipe, dies):
        end = time.monotonic() + PATIENCE.total_seconds()
        data = b""
        with os.fdopen(pipe, "rb", buffering=0) as source:
            while select.select([source], [], [], max(0, end - time.monotonic()))[0]:
                part = source.read(1 << 16)
                if not part:
                    break
                data += part
        if data:
            return pickle.loads(data)
        return (rank in dies), None if rank in dies else "it ended without a result, or did not end"

    def _reap(self, pid):
        for _ in range(100):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
