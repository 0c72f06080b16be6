"""What a Python program sees when something goes wrong, and what it may do while it waits."""

import contextlib
import ctypes
import datetime
import faulthandler
import functools
import io
import operator
import os
import pathlib
import pickle
import runpy
import signal
import threading
import time
import unittest

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import lockstep_torch
from worlds import World, error_of, free_port

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"

SOON = datetime.timedelta(milliseconds=300)


def a_rank_dies(rank, size):
    value = torch.ones(4)
    dist.all_reduce(value)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    own = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert own.get_error() == ErrorType.SUCCESS
    pending = dist.all_reduce(value, async_op=True)
    answers = [error_of(pending.wait), error_of(lambda: dist.all_reduce(value)), error_of(dist.barrier),
               error_of(lambda: pending.get_future().wait())]
    assert own.get_error() == ErrorType.REMOTE_ERROR, own.get_error()
    return answers


def different_calls(rank, size):
    return error_of(lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM))


def torchs_ranks_beside_another_backend(rank, size):
    pair = dist.new_group([1, 2], backend="lockstep")
    if rank == 0:
        return None
    dist.barrier(group=pair)
    [config] = pickle.loads(lockstep_torch.trace())["pg_config"].values()
    own = pair._get_backend(torch.device("cpu"))
    different = different_calls_in(pair, rank == 1)
    answers = [own] if rank == 1 else [own, own.shrink([0])]
    refused = [error_of(lambda: group.allreduce([torch.empty(2, device="meta")]))[1] for group in answers]
    return config["ranks"], refused, different


def torchs_ranks_after_a_shrink(rank, size):
    if rank == 1:
        dist.destroy_process_group()
        return None
    dist.shrink_group([1])
    return different_calls_in(None, rank)


def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def a_batch_that_is_refused(rank, size):
    """By torch, and by us: the group lives on as if nothing had been asked."""
    other = 1 - rank
    refused = []
    for wrong in (dist.P2POp(dist.isend, torch.ones(4).to_sparse(), other), dist.P2POp(dist.irecv, torch.ones(1).expand(2), other)):
        batch = [dist.P2POp(dist.isend, torch.ones(4), other), dist.P2POp(dist.irecv, torch.ones(4), other), wrong]
        refused.append(error_of(lambda: dist.batch_isend_irecv(batch))[0])
    value, whole = torch.tensor([rank + 1.0]), torch.empty(size)
    dist.all_reduce(value)
    dist.all_gather_into_tensor(whole, torch.tensor([float(rank)]))
    return refused, value.item(), whole.tolist()


def a_scope_that_an_error_leaves(rank, size):
    """torch leaves it without an end, and it keeps no tensors."""
    try:
        with dist._coalescing_manager(device=torch.device("cpu")):
            raise KeyError
    except KeyError:
        pass
    before = resident_bytes()
    for _ in range(128):
        dist.broadcast(torch.ones(1 << 20), 0)
    return resident_bytes() - before


def coalesced(rank, size):
    """One work of several has all that a work has."""
    gather = dist.group.WORLD.allgather_into_tensor_coalesced
    inputs = [torch.ones(2), torch.ones(2, dtype=torch.float64)]  # of two types, so two operations
    outputs = [torch.empty(2 * size, dtype=one.dtype) for one in inputs]
    work = gather(outputs, inputs)
    assert work.wait(datetime.timedelta(seconds=20))
    assert work._get_duration() > 0 and work.get_future_result().wait() == 0, work._get_duration()
    given = work.get_future().wait()
    assert [one.tolist() for one in given] == [[1.0] * 2 * size] * 2, given
    if rank == 1:
        dist.distributed_c10d._get_default_store().wait(["waited"])
        gather(outputs, inputs).wait()
        return None
    work = gather(outputs, inputs)
    begun = time.monotonic()
    answer = error_of(lambda: work.wait(datetime.timedelta(milliseconds=200)))
    took = time.monotonic() - begun
    dist.distributed_c10d._get_default_store().set("waited", "")
    work.wait()
    return answer[1], took


def different_calls_in(group, differs):
    op = dist.ReduceOp.MAX if differs else dist.ReduceOp.SUM
    return error_of(lambda: dist.all_reduce(torch.ones(4), op=op, group=group))[1]


def wrong_calls(rank, size):
    answers = [
        error_of(lambda: dist.all_reduce(torch.empty(2, dtype=torch.float8_e5m2))),
        error_of(lambda: dist.all_gather([torch.empty(2)] * 2, torch.empty(3))),
        error_of(lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 3], [1, 2])),
        error_of(lambda: dist.all_reduce(torch.ones(2).expand(3, 2))),
        error_of(lambda: lockstep_torch.empty_resident(-1)),
    ]
    value = torch.ones(2)
    # A tensor on another device, as a CUDA tensor is, for which torch asks the same backend.
    own = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert dist.group.WORLD._get_backend(torch.device("cuda")) is own
    elsewhere = torch.empty(2, device="meta")
    for call in (lambda: own.allreduce([elsewhere]), lambda: own.allgather([[value, elsewhere]], [value]),
                 lambda: own.send([elsewhere], 1 - rank, 0), lambda: own.recv([elsewhere], 1 - rank, 0)):
        kind, text = error_of(call)
        assert kind is ValueError and "on meta, and the backend lockstep takes CPU tensors: move it" in text, text
    kind, text = error_of(lambda: own.allocate_tensor(8, dtype=torch.float32, device=torch.device("cuda")))
    assert kind is ValueError and "cannot be resident; only CPU tensors can" in text, (kind, text)
    dist.all_reduce(value)
    assert value[0] == size  # the group lives on
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    return [*answers, error_of(lambda: backend.allreduce([torch.ones(2)]).wait()), error_of(lockstep_torch.monitored_barrier)]


def world_with(**said):
    """A world of one whose options say this."""
    asked, given = dist.distributed_c10d._DistributedBackendOptions(), lockstep_torch.Options()
    asked.store, asked.group_rank, asked.group_size, asked.timeout = dist.HashStore(), 0, 1, datetime.timedelta(seconds=20)
    for name, value in said.items():
        setattr(given, name, value)
    return lockstep_torch._create(asked, given)


def refused_arguments(rank, size):
    """Each is one sentence that says what is wrong with what was given."""
    own = dist.group.WORLD._get_backend(torch.device("cpu"))
    negative = datetime.timedelta(seconds=-5)
    short = dist.AllreduceOptions()
    short.timeout = negative
    sparse = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), (3,), check_invariants=False)
    said = [
        (lambda: next(lockstep_torch._rendezvous("lockstep://h:1?rank=x")), "rank=x"),
        (lambda: next(lockstep_torch._rendezvous("lockstep://h:1?size=2")), "size=2"),
        (lambda: next(lockstep_torch._rendezvous("lockstep://h:1?rank=0&rank=1")), "rank 2 times"),
        (lambda: next(lockstep_torch._rendezvous("lockstep:///path")), "has the path /path"),
        (lambda: lockstep_torch.empty_resident(1, group=dist.GroupMember.NON_GROUP_MEMBER), "rank 0 is not in the group"),
        (lambda: lockstep_torch.empty_resident("a"), "'a' is no size"),
        (lambda: lockstep_torch.empty_resident(1.5), "1.5 is no size"),
        (lambda: world_with(stall_after=datetime.timedelta(0)), "stall_after is 0"),
        (lambda: world_with(stall_after=negative), "stall_after is -5"),
        (lambda: world_with(heap_capacity=1 << 20), "heap_capacity is 1.0 MiB"),
        (lambda: world_with(threads=0), "threads is 0"),
        (lambda: own.allreduce([torch.ones(2)], short), "all_reduce: timeout is -5"),
        (lambda: lockstep_torch.monitored_barrier(timeout=negative), "monitored_barrier: timeout is -5"),
        (lambda: own._set_default_timeout(negative), "timeout is -5"),
        (lambda: own.send([torch.ones(2)], 0, -3), "send: the tag is -3"),
        (lambda: own.recv([torch.ones(2)], 0, -3), "recv: the tag is -3"),
        (lambda: own.recv_anysource([torch.ones(2)], -3), "recv: the tag is -3"),
        (lambda: dist.all_reduce(sparse, op=dist.ReduceOp.MIN), "a sparse tensor can only be summed"),
        (lambda: dist.broadcast(torch.empty(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), 0), "cannot travel: send its bytes, viewed as uint8"),
        (lambda: own.broadcast([torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)], dist.BroadcastOptions()), "cannot travel: dequantize() it first"),
    ]
    for call, text in said:
        kind, sentence = error_of(call)
        assert kind in (ValueError, TypeError) and text in sentence and "\n" not in sentence, (kind, sentence)
    kind, sentence = error_of(lambda: lockstep_torch.empty_resident(1 << 50))
    assert kind is torch.OutOfMemoryError and "rank 0: empty_resident: there is no memory for" in sentence, (kind, sentence)
    lockstep_torch.monitored_barrier(dist.GroupMember.NON_GROUP_MEMBER)  # as torch's, which has nothing to do then


def a_rank_does_not_come(rank, size):
    everybody, at_once = dist.new_group(), dist.new_group()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["0", "2"])
        return None
    answer = [error_of(lambda: lockstep_torch.monitored_barrier(timeout=SOON))]
    pending = everybody.allreduce([torch.ones(2)], timeout_of_a_moment())
    answer.append(error_of(pending.wait))
    assert pending.get_future_result().wait() == 1  # c10d::WorkResult::TIMEOUT
    own = at_once._get_backend(torch.device("cpu"))
    own._set_default_timeout(SOON)
    assert own.options._timeout == SOON
    answer.append(error_of(lambda: dist.all_reduce(torch.ones(2), group=at_once)))
    assert own.get_error() == ErrorType.TIMEOUT
    store.set(str(rank), "done")
    return answer


def a_message_does_not_come(rank, size):
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        return store.wait(["told"])
    dist.group.WORLD._get_backend(torch.device("cpu"))._set_default_timeout(SOON)
    answer = error_of(lambda: dist.recv(torch.empty(2), 1))
    store.set("told", "")
    return answer


def a_wait_is_shorter_than_its_operation(rank, size):
    """Rank 1 comes when rank 0 has waited in vain."""
    store = dist.distributed_c10d._get_default_store()
    value = torch.ones(2)
    if rank == 1:
        store.wait(["waited"])
        dist.all_reduce(value)
        return dist.send(value, 0)
    works = [dist.all_reduce(value, async_op=True), dist.irecv(torch.empty(2), 1)]
    answers = [error_of(lambda: work.wait(datetime.timedelta(milliseconds=20))) for work in works]
    store.set("waited", "")
    for work in works:
        work.wait()
    return answers


def a_member_does_not_come(rank, size):
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["0"])
        return None
    begun = time.monotonic()
    answer = error_of(lambda: dist.new_group(timeout=datetime.timedelta(seconds=1)))
    took = time.monotonic() - begun
    store.set("0", "")
    return *answer, took


def who_serves_the_store_dies(rank, size, port):
    """Which the others notice while they make a group."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("lockstep")
    dist.barrier()
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["1", "2"])
        time.sleep(0.1)  # they wait in the store
        os.kill(os.getpid(), signal.SIGKILL)
    dist.distributed_c10d._get_default_store().set(str(rank), "")
    return error_of(dist.new_group)


def a_group_that_is_interrupted(rank, size, leave):
    """A rank that leaves after that is not taken for one that has died: nor does the call that was left hold it."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["left"])
        answer = error_of(dist.barrier)
        store.set("heard", "")
        return answer
    makes = {"new_group": dist.new_group, "exit": dist.new_group,
             "split": lambda: dist.group.WORLD.split_group([0, 1], group_name="all")}[leave]
    answer = pressed(makes, 0.1)
    if leave == "exit":  # what is done at exit, when the groups are there
        lockstep_torch._C.leave_all()
    dist.destroy_process_group()
    store.set("left", "")
    store.wait(["heard"])
    return answer


def timeout_of_a_moment():
    options = dist.AllreduceOptions()
    options.timeout = SOON
    return options


def interrupted(rank, size, call, after):
    """Rank 0 waits for rank 1, which does nothing until it is told."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 1:
        store.wait(["interrupted"])
        return None
    waits = {"collective": lambda: dist.all_reduce(torch.ones(2)),
             "work": lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
             "message": lambda: dist.recv(torch.empty(2), 1),
             "message, chained": lambda: (faulthandler.register(signal.SIGINT, open(os.devnull, "w"), chain=True),
                                          dist.recv(torch.empty(2), 1))}[call]
    answer = pressed(waits, after)
    store.set("interrupted", "1")
    return answer


def own_handler(rank, size, raises):
    """Rank 0 waits, and a handler of the program's own hears Ctrl-C: once if it raises nothing, and twice if it raises."""
    store = dist.distributed_c10d._get_default_store()
    came = []

    class Stop(Exception):
        pass

    def handler(*_):
        came.append(1)
        if raises:
            raise Stop

    dist.barrier()
    if rank == 1:
        store.wait(["pressed"])
        return error_of(dist.barrier) if raises else dist.barrier()
    signal.signal(signal.SIGINT, handler)
    main = threading.get_ident()

    def press():
        for _ in range(2 if raises else 1):
            time.sleep(0.2)
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
        if not raises:
            store.set("pressed", "")

    thread = threading.Thread(target=press)
    thread.start()
    stopped = False
    try:
        dist.barrier()
    except Stop:
        stopped = True
        store.set("pressed", "")
    thread.join()
    return len(came), stopped


def pressed(waits, after):
    """What becomes of a call while which Ctrl-C is pressed, once, and soon."""
    main = threading.get_ident()
    begins = threading.Event()

    def press():
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
    return answer


def interrupted_alone(rank, size, port):
    """What waits for a rank that never comes."""
    patience = datetime.timedelta(seconds=20)
    joining = pressed(lambda: dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=2, timeout=patience), 0.1)
    meeting = pressed(lambda: lockstep_torch.Store(f"tcp://127.0.0.1:{port}", rank=0, world_size=2, timeout=patience), 0.1)
    store = lockstep_torch.Store(f"tcp://127.0.0.1:{port}", rank=0, world_size=1, timeout=patience)
    waits = (lambda: store.get("none"), lambda: store.wait(["none"]), lambda: store.multi_get(["none"]), lambda: store.queue_pop("none"))
    return joining, meeting, *(pressed(wait, 0.1) for wait in waits)


def interrupted_just_before(rank, size):
    """The signal comes after Python has looked for signals and before the call waits: all is one call of C code."""
    if rank == 1:
        time.sleep(0.15)
        dist.barrier()
        return None
    moment = dist.BarrierOptions()
    moment.timeout, moment.asyncOp = datetime.timedelta(seconds=20), False
    press = functools.partial(ctypes.PyDLL(None)["raise"], signal.SIGINT)
    barrier = functools.partial(dist.group.WORLD._get_backend(torch.device("cpu")).barrier, moment)
    answers = []
    for _ in range(2):
        try:
            list(map(operator.call, [press, barrier]))
        except KeyboardInterrupt:
            answers.append("interrupted")
    try:
        signal.raise_signal(signal.SIGINT)  # Python handles it
    except KeyboardInterrupt:
        dist.barrier()  # and it does not end the next wait, though that takes long enough to be looked at
    return answers


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


def futures_of_messages(rank, size):
    """A message may end, and so may others, on the thread that asks for its future."""
    other = 1 - rank
    for number in range(2000):
        got = torch.zeros(1)
        receive, send = dist.irecv(got, other), dist.isend(torch.ones(1), other)
        future = receive.get_future_result() if number % 2 else receive.get_future()
        receive.wait()
        future.wait()
        send.wait()
        assert got.item() == 1
    return True


def other_threads_run_meanwhile(rank, size):
    """The GIL is free while a rank waits: Python code of another thread makes the other rank's collective possible."""
    pair = dist.new_group()
    value = torch.ones(1)
    begins = threading.Event()

    def run_python():
        begins.wait()
        end = time.monotonic() + 0.05  # the other thread has its turns meanwhile, and waits
        while time.monotonic() < end:
            pass
        dist.barrier(group=pair)

    if rank == 0:
        work = dist.all_reduce(value, async_op=True)
        thread = threading.Thread(target=run_python)
        thread.start()
        begins.set()
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
    assert backend.get_error() == (ErrorType.REMOTE_ERROR if rank else ErrorType.COMM_ERROR)
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

    def test_torchs_ranks_are_named_where_the_world_counts_otherwise(self):
        _, one, two = World(3, backend="gloo").run(torchs_ranks_beside_another_backend)
        for rank, (ranks, refused, different) in ((1, one), (2, two)):
            self.assertEqual(ranks, "[1, 2]")
            self.assertTrue(all(text.startswith(f"rank {rank}: ") for text in refused), refused)
            self.assertIn("As torch counts: 0 is 1, 1 is 2.)", different)
        for text in World(3).run(torchs_ranks_after_a_shrink)[::2]:
            self.assertIn("As torch counts: 0 is 0, 2 is 1.)", text)

    def test_wrong_calls_are_sentences_and_the_group_lives_on(self):
        for answers in World(2).run(wrong_calls):
            self.assertEqual([kind for kind, _ in answers], [ValueError] * len(answers), answers)
            self.assertIn("float8", answers[0][1])
            self.assertIn("destroyed", answers[5][1])

    def test_after_a_batch_that_is_refused_the_group_works(self):
        for answer in World(2).run(a_batch_that_is_refused):
            self.assertEqual(answer, ([NotImplementedError, ValueError], 3.0, [0.0, 1.0]))

    def test_a_coalescing_scope_that_an_error_has_left_keeps_no_tensors(self):
        for kept in World(2).run(a_scope_that_an_error_leaves):
            self.assertLess(kept, 128 << 20)  # of 512 MiB

    def test_several_works_as_one(self):
        said, took = World(2).run(coalesced)[0]
        self.assertIn("has not ended before the timeout of this wait()", said)
        self.assertLess(took, 5)

    def test_arguments_that_are_refused_are_sentences(self):
        World(1).run(refused_arguments)

    def test_ranks_that_do_not_come_are_named(self):
        answers = World(3).run(a_rank_does_not_come)
        for answer in (answers[0], answers[2]):
            for kind, text in answer:
                self.assertIs(kind, dist.DistBackendError)
                self.assertIn("rank 1", text)
            self.assertIn("Rank 1 failed to pass monitoredBarrier", answer[0][1])  # gloo's words
            for _, text in answer[1:]:
                self.assertRegex(text, r"waited \S+ [mun]?s for rank 1; its timeout is over$")

    def test_a_member_that_does_not_come_to_a_new_group_is_named(self):
        kind, text, took = World(2).run(a_member_does_not_come)[0]
        self.assertIs(kind, dist.DistBackendError)
        self.assertRegex(text, r'^rank 0: new_group of the group "1": rank 1 has not called it after 1\.\d s')
        self.assertLess(took, 30)  # the world's timeout is 120 s

    def test_a_message_that_does_not_come_is_told_in_one_sentence(self):
        kind, text = World(2).run(a_message_does_not_come)[0]
        self.assertIs(kind, dist.DistBackendError)
        self.assertRegex(text, r"no such message has come from rank 1; its timeout is over\.$")

    def test_who_served_the_store_and_died_is_named_by_a_new_group(self):
        for kind, text in World(3, joins=False).run(who_serves_the_store_dies, free_port(), dies=(0,))[1:]:
            self.assertIs(kind, dist.DistBackendError)
            self.assertRegex(text, r'^rank \d: new_group of the group "1": rank 0 died')

    def test_who_leaves_after_an_interrupted_group_has_left(self):
        for leave in ("new_group", "split", "exit"):
            with self.subTest(leave):
                answer, (kind, text) = World(2).run(a_group_that_is_interrupted, leave)
                self.assertEqual(answer, "interrupted")
                self.assertIs(kind, dist.DistBackendError)
                self.assertIn("rank 0 left the group", text)

    def test_a_wait_that_is_over_does_not_say_that_its_operation_is(self):
        for kind, text in World(2).run(a_wait_is_shorter_than_its_operation)[0]:
            self.assertIs(kind, dist.DistBackendError)
            self.assertRegex(text, r"^rank 0: .* has not ended before the timeout of this wait\(\); it goes on\.$")

    def test_ctrl_c_ends_every_wait(self):
        for wait, after in (("collective", 0.01), ("collective", 0.15), ("work", 0.01), ("message", 0.01),
                            ("message, chained", 0.15)):
            with self.subTest(wait, after=after):
                answers = World(2).run(interrupted, wait, after)
                self.assertEqual(answers[0], "interrupted")

    def test_ctrl_c_ends_joining(self):
        self.assertEqual(World(1, joins=False).run(interrupted_alone, free_port()), [("interrupted",) * 6])

    def test_a_handler_of_the_programs_own_ends_a_wait_when_it_comes_again(self):
        self.assertEqual(World(2).run(own_handler, False), [(1, False), None])
        (came, stopped), told = World(2).run(own_handler, True)
        self.assertTrue(came >= 1 and stopped)
        self.assertIs(told[0], dist.DistBackendError)
        self.assertIn('rank 0 was interrupted in an operation of the group "world"', told[1])

    def test_ctrl_c_just_before_a_wait_ends_it_and_no_other(self):
        self.assertEqual(World(2).run(interrupted_just_before)[0], ["interrupted"] * 2)

    def test_callbacks_of_futures_may_wait_for_collectives(self):
        for answer in World(2).run(hooks_may_wait):
            self.assertEqual(answer, [400.0] * 20)

    def test_a_message_may_end_while_its_future_is_asked_for(self):
        self.assertEqual(World(2).run(futures_of_messages), [True, True])

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
