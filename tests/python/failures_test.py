"""What a Python program sees when something goes wrong, and what it may do while it waits."""

import contextlib
import datetime
import io
import os
import pathlib
import runpy
import signal
import threading
import time
import unittest

import torch
import torch.distributed as dist

import lockstep_torch
from worlds import World, free_port

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"

SOON = datetime.timedelta(milliseconds=300)


def error_of(call):
    """The class and the text of what a call raises."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("nothing was raised")


def a_rank_dies(rank, size):
    value = torch.ones(4)
    dist.all_reduce(value)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    pending = dist.all_reduce(value, async_op=True)
    return [error_of(pending.wait), error_of(lambda: dist.all_reduce(value)), error_of(dist.barrier),
            error_of(lambda: pending.get_future().wait())]


def different_calls(rank, size):
    return error_of(lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM))


def wrong_calls(rank, size):
    answers = [
        error_of(lambda: dist.all_reduce(torch.empty(2, dtype=torch.float8_e5m2))),
        error_of(lambda: dist.all_gather([torch.empty(2)] * 2, torch.empty(3))),
        error_of(lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 3], [1, 2])),
        error_of(lambda: dist.all_reduce(torch.ones(2).expand(3, 2))),
        error_of(lambda: lockstep_torch.empty_resident(-1)),
    ]
    # A tensor on another device, as a CUDA tensor would be: torch itself gives none to the backend.
    own = dist.group.WORLD._get_backend(torch.device("cpu"))
    kind, text = error_of(lambda: own.allreduce([torch.empty(2, device="meta")]))
    assert kind is ValueError and "meta" in text, (kind, text)
    kind, text = error_of(lambda: own.allocate_tensor(8, dtype=torch.float32, device=torch.device("cuda")))
    assert kind is ValueError and "cannot be resident; only CPU tensors can" in text, (kind, text)
    value = torch.ones(2)
    dist.all_reduce(value)
    assert value[0] == size  # the group lives on
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    return [*answers, error_of(lambda: backend.allreduce([torch.ones(2)]).wait()), error_of(lockstep_torch.monitored_barrier)]


def a_rank_does_not_come(rank, size):
    everybody = dist.new_group()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["0", "2"])
        return None
    answer = [error_of(lambda: lockstep_torch.monitored_barrier(timeout=SOON)),
              error_of(lambda: everybody.allreduce([torch.ones(2)], timeout_of_a_moment()).wait())]
    store.set(str(rank), "done")
    return answer


def timeout_of_a_moment():
    options = dist.AllreduceOptions()
    options.timeout = SOON
    return options


def interrupted(rank, size, call, after):
    """Rank 0 waits for rank 1, which does nothing until it is told."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["interrupted"])
        return None
    waits = {"collective": lambda: dist.all_reduce(torch.ones(2)),
             "work": lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
             "message": lambda: dist.recv(torch.empty(2), 1)}[call]
    main = threading.get_ident()
    begins = threading.Event()

    def press():  # once, and soon
        begins.wait()
        time.sleep(after)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    answer = "nothing"
    try:
        begins.set()
        waits()
    except KeyboardInterrupt:
        answer = "interrupted"
    thread.join()
    store.set("interrupted", "1")
    return answer


def hooks_may_wait(rank, size):
    """A callback of a future issues and waits for a collective of another group, many at a time."""
    other = dist.new_group()
    futures = []
    for _ in range(20):
        work = dist.all_reduce(torch.ones(100), async_op=True)
        futures.append(work.get_future())
    turn = threading.Lock()
    order = iter(range(20))

    def then(future):
        with turn:
            next(order)
            value = future.value()[0].clone()
            dist.all_reduce(value, group=other)
        return value.sum().item()

    chained = [future.then(then) for future in futures]
    return [future.wait() for future in chained]


def other_threads_run_meanwhile(rank, size):
    """The GIL is free while a rank waits: a thread of the same process makes the other's collective possible."""
    pair = dist.new_group()
    value = torch.ones(1)
    if rank == 0:
        work = dist.all_reduce(value, async_op=True)
        thread = threading.Thread(target=lambda: dist.barrier(group=pair))
        thread.start()
        work.wait()
        thread.join()
    else:
        dist.barrier(group=pair)
        dist.all_reduce(value)
    return value.item()


def forked_child(rank, size):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = error_of(lambda: dist.all_reduce(torch.ones(2)))
        os.write(writer, answer[1].encode())
        os._exit(0)
    os.waitpid(pid, 0)
    value = torch.ones(2)
    dist.all_reduce(value)
    return os.read(reader, 4096).decode(), value[0].item()


def profiled(rank, size):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(2))
        dist.barrier(async_op=True).wait()
        work = dist.broadcast(torch.ones(2), 0, async_op=True)
        work.wait()
        work.get_future().wait()
    return sorted({event.key for event in profile.key_averages() if event.key.startswith("lockstep:")})


def aborted(rank, size):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.is_completed() and work.get_future().value()[0][0] == size
    dist.barrier()
    if rank == 0:
        backend.abort()
    answer = error_of(lambda: dist.all_reduce(torch.ones(2)))
    return answer


def same_bug(rank, size, bug, port):
    """What examples/12_same_bug prints."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(EXAMPLES / "12_same_bug" / "same_bug.py"))["main"](bug, "lockstep")
    return printed.getvalue()


class FailuresTest(unittest.TestCase):
    def test_the_example_says_what_the_docs_say(self):
        """Which rank sees it first, and is named first, differs from run to run."""
        page = (EXAMPLES.parent / "docs" / "python-errors.md").read_text(encoding="utf-8")
        dies = r"DistBackendError: rank \d: all_reduce #4 \(3\.9 KiB, float32, sum\): rank 1 died"
        differs = (r"DistBackendError: ranks are in different operations: .*rank 1 is in all_reduce #4 \(3\.9 KiB, float32, "
                   r"max\).*; the first difference is the reduce op")
        for bug, said, told, dead in (("dies", dies, (0, 2), (1,)), ("differs", differs, (0, 1, 2), ())):
            self.assertRegex(page, said)
            printed = World(3, joins=False).run(same_bug, bug, free_port(), dies=dead)
            for rank in told:
                self.assertRegex(printed[rank], said)

    def test_a_rank_that_dies_is_named(self):
        answers = World(3).run(a_rank_dies, dies=(1,))
        for answer in (answers[0], answers[2]):
            for kind, text in answer:
                self.assertTrue(issubclass(kind, RuntimeError), kind)
                self.assertIn("rank 1", text)
            self.assertIs(answer[0][0], dist.DistBackendError)

    def test_different_calls_are_named(self):
        for kind, text in World(2).run(different_calls):
            self.assertIs(kind, dist.DistBackendError)
            self.assertIn("the first difference is the reduce op", text)

    def test_wrong_calls_are_sentences_and_the_group_lives_on(self):
        for answers in World(2).run(wrong_calls):
            self.assertEqual([kind for kind, _ in answers], [ValueError] * len(answers), answers)
            self.assertIn("float8", answers[0][1])
            self.assertIn("destroyed", answers[5][1])

    def test_ranks_that_do_not_come_are_named(self):
        answers = World(3).run(a_rank_does_not_come)
        for answer in (answers[0], answers[2]):
            for kind, text in answer:
                self.assertIs(kind, dist.DistBackendError)
                self.assertIn("rank 1", text)

    def test_ctrl_c_ends_every_wait(self):
        for wait, after in (("collective", 0.01), ("collective", 0.15), ("work", 0.01), ("message", 0.01)):
            with self.subTest(wait, after=after):
                answers = World(2).run(interrupted, wait, after)
                self.assertEqual(answers[0], "interrupted")

    def test_callbacks_of_futures_may_wait_for_collectives(self):
        for answer in World(2).run(hooks_may_wait):
            self.assertEqual(answer, [400.0] * 20)

    def test_other_threads_run_while_one_waits(self):
        self.assertEqual(World(2).run(other_threads_run_meanwhile), [2.0, 2.0])

    def test_a_forked_child_is_told_and_hurts_nobody(self):
        for text, value in World(2).run(forked_child):
            self.assertIn("fork", text)
            self.assertEqual(value, 2.0)

    def test_profiler_shows_the_operations(self):
        self.assertEqual(World(2).run(profiled), [["lockstep:all_reduce", "lockstep:barrier", "lockstep:broadcast"]] * 2)

    def test_abort_ends_the_group_for_all(self):
        for kind, text in World(2).run(aborted):
            self.assertIs(kind, dist.DistBackendError)
            self.assertIn("rank 0 has aborted", text)


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # torch has warnings for what it renames
