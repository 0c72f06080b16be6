"""Every operation of the backend on worlds of 1 to 4 ranks, against gloo where gloo has it."""

import datetime
import itertools
import os
import time
import unittest

import torch
import torch.distributed as dist

import lockstep_torch
from worlds import PATIENCE, World, free_port

SOON = datetime.timedelta(milliseconds=300)

INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
MOVED = [torch.bool, torch.int16, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]


def numbers(dtype, rank, count=37):
    """Small whole numbers, on which every type computes exactly."""
    values = (torch.arange(count) * 7 + rank * 3) % 5 + 1
    return values.to(dtype)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().view(torch.uint8).equal(
        b.contiguous().view(torch.uint8))


def reductions_as_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    for dtype, op in [*itertools.product(INTEGERS + FLOATS, OPS), *itertools.product(INTEGERS, BITS)]:
        for call in (dist.all_reduce, lambda t, **k: dist.reduce(t, size - 1, **k)):
            ours, theirs = numbers(dtype, rank), numbers(dtype, rank)
            call(ours, op=op)
            call(theirs, op=op, group=gloo)
            # A reduce may leave anything on the other ranks, and ours leaves what was there.
            if call is dist.all_reduce or rank == size - 1:
                assert same(ours, theirs), (dtype, op, ours, theirs)
        ours, theirs = torch.empty(5, dtype=dtype), torch.empty(5, dtype=dtype)
        parts = [numbers(dtype, rank + r, 5) for r in range(size)]
        dist.reduce_scatter(ours, parts, op=op)
        dist.reduce_scatter(theirs, parts, op=op, group=gloo)
        assert same(ours, theirs), (dtype, op)


def moves_as_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    groups = (None, gloo)
    for dtype in INTEGERS + FLOATS:
        mine = numbers(dtype, rank, 6).view(2, 3)
        for root in range(size):
            results = []
            for group in groups:
                sent = mine.clone()
                dist.broadcast(sent, root, group=group)
                parts = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
                dist.gather(mine, parts, dst=root, group=group)
                taken = torch.empty_like(mine)
                dist.scatter(taken, [mine + r for r in range(size)] if rank == root else None, src=root, group=group)
                results.append([sent, *(parts or []), taken])
            assert all(map(same, *results)), dtype
        results = []
        for group in groups:
            parts = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(parts, mine, group=group)
            whole = torch.empty(2 * size, 3, dtype=dtype)
            dist.all_gather_into_tensor(whole, mine, group=group)
            exchanged = torch.empty(size, 3, dtype=dtype)
            dist.all_to_all_single(exchanged, mine.flatten()[:3].repeat(size).view(size, 3) + rank, group=group)
            part = torch.empty(3, dtype=dtype)
            dist.reduce_scatter_tensor(part, mine.flatten()[:3].repeat(size), group=group)
            results.append([*parts, whole, exchanged, part])
        assert all(map(same, *results)), dtype


def in_place_as_gloo(rank, size):
    """What a rank gives to itself lies where it takes it: in a list of its own tensors, or of the parts of one."""
    gloo = dist.new_group(backend="gloo")

    def lists(value):
        whole = torch.full((3 * size,), float(value))
        return [torch.full((3,), float(value)) for _ in range(size)], list(whole.chunk(size))

    def all_gather(parts, group):
        parts[rank].fill_(rank + 1)
        dist.all_gather(parts, parts[rank], group=group)

    def gather(parts, group):
        parts[rank].fill_(rank + 1)
        dist.gather(parts[rank], parts if rank == 0 else None, dst=0, group=group)

    def scatter(parts, group):
        for r, part in enumerate(parts):
            part.fill_(10 * rank + r)
        dist.scatter(parts[rank], parts if rank == size - 1 else None, src=size - 1, group=group)

    def reduce_scatter(parts, group):
        for r, part in enumerate(parts):
            part.fill_(10 * rank + r)
        dist.reduce_scatter(parts[rank], parts, group=group)

    def all_to_all(parts, group):
        for r, part in enumerate(parts):
            part.fill_(10 * rank + r)
        taken = [parts[r] if r == rank else torch.zeros(3) for r in range(size)]
        try:
            dist.all_to_all(taken, parts, group=group)
        except RuntimeError as error:  # torch 2.11's gloo has none
            assert group is gloo and "does not support alltoall" in str(error), error
            for r, part in enumerate(taken):
                part.fill_(10 * r + rank)
        parts.extend(taken)

    def all_gather_coalesced(parts, group):
        parts[rank].fill_(rank + 1)
        outputs = [[part, torch.zeros(2)] for part in parts]
        backend = dist.group.WORLD if group is None else group
        backend._get_backend(torch.device("cpu")).allgather_coalesced(outputs, [parts[rank], torch.full((2,), float(rank))]).wait()
        parts.extend(other for _, other in outputs)

    for call in (all_gather, gather, scatter, reduce_scatter, all_to_all, all_gather_coalesced):
        for ours, theirs in zip(lists(-1), lists(-1)):
            call(ours, None)
            call(theirs, gloo)
            assert all(map(same, ours, theirs)), (call, ours, theirs)
    # The input is read before anything is written also where nobody waits.
    parts = lists(rank + 1)[0]
    dist.all_gather(parts, parts[rank], async_op=True).wait()
    assert [part[0].item() for part in parts] == [r + 1.0 for r in range(size)]
    # What is in another rank's place is refused.
    if size > 1:
        try:
            dist.all_gather(parts, parts[rank - 1])
            raise AssertionError("it was not refused")
        except ValueError as error:
            assert "share memory" in str(error), error


def exchanged_as_gloo(rank, size):
    """Without sizes, all_to_all_single moves elements, whatever the shapes: those of rank 0 differ from the others'."""
    gloo = dist.new_group(backend="gloo")
    for given, taken in (((2 * size, 2), (4 * size,)), ((2 * size, 2), (size, 4)), ((4 * size,), (2 * size, 2)),
                         ((size, 2, 2), (2 * size, 2))):
        results = []
        for group in (None, gloo):
            shapes = (given, taken) if rank == 0 else (given, given)
            mine = torch.arange(4.0 * size).view(shapes[0]) + 100 * rank
            results.append(torch.zeros(shapes[1]))
            dist.all_to_all_single(results[-1], mine, group=group)
        assert same(*results), (given, taken, results)
    try:
        dist.all_to_all_single(torch.zeros(4 * size + 1), torch.zeros(2 * size, 2))
        raise AssertionError("it was not refused")
    except ValueError as error:
        assert "all_to_all_single" in str(error), error


def more_than_gloo(rank, size):
    for dtype in MOVED + FLOAT8:
        mine = (numbers(torch.float32, rank, 4) % 2).to(dtype)
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        for r, part in enumerate(parts):
            assert same(part, (numbers(torch.float32, r, 4) % 2).to(dtype)), dtype
    for dtype in (torch.complex64, torch.complex128):
        value = torch.full((3,), complex(rank, 1), dtype=dtype)
        dist.all_reduce(value)
        assert value[0] == complex(size * (size - 1) / 2, size)
    for dtype in INTEGERS + FLOATS:
        value = torch.full((3,), 2 * rank, dtype=dtype)
        dist.all_reduce(value, op=dist.ReduceOp.AVG)
        assert value[0] == size - 1, (dtype, value)
    value = torch.full((3,), 2.0)
    dist.all_reduce(value, op=dist._make_nccl_premul_sum(rank + 1.0))
    assert value[0] == size * (size + 1), value
    # Uneven sizes, and memory that is not one plain array.
    rows = [r + 1 for r in range(size)]
    given = torch.full((sum(rows), 2), float(rank))
    taken = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(taken, given, output_split_sizes=[rank + 1] * size, input_split_sizes=rows)
    assert taken[:, 0].tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]
    lists = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(lists, torch.full((rank + 1,), float(rank)))
    assert all(part.eq(r).all() for r, part in enumerate(lists))
    matrix = torch.arange(6.0).view(2, 3).t()
    dist.all_reduce(matrix)
    assert matrix.equal(torch.arange(6.0).view(2, 3).t() * size)
    sparse = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [float(size)] + [2.0] * size


def coalesced(rank, size):
    tensors = [torch.full((n,), float(rank)) for n in (1, 5, 1000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(tensor.eq(size * (size - 1) / 2).all() for tensor in tensors)
    wholes = [torch.empty(2 * size, dtype=dtype) for dtype in (torch.float32, torch.int64, torch.float32)]
    with dist._coalescing_manager():
        for whole in wholes:
            dist.all_gather_into_tensor(whole, torch.full((2,), rank, dtype=whole.dtype))
    assert all(whole[::2].tolist() == list(range(size)) for whole in wholes)
    parts = [torch.empty(2) for _ in range(3)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.ones(2 * size))
    assert all(part.eq(size).all() for part in parts)
    # A scope of a device is one work, whatever is in it.
    got, sent = torch.empty(2), torch.full((2,), float(rank))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(sent, 1)
        dist.isend(sent, 1 - rank)
        dist.irecv(got, 1 - rank)
    [work] = manager.works
    work.wait()
    assert got.eq(1).all() and sent.eq(1).all(), (got, sent)


def messages(rank, size):
    to, origin = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(1000)
    ops = [dist.P2POp(dist.irecv, got, origin), dist.P2POp(dist.isend, torch.full((1000,), float(rank)), to)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert got.eq(origin).all()
    first, second = torch.empty(3), torch.empty(3)
    works = [dist.irecv(second, origin, tag=2), dist.irecv(first, origin, tag=1),
             dist.isend(torch.ones(3), to, tag=1), dist.isend(torch.full((3,), 2.0), to, tag=2)]
    for work in works:
        work.wait()
    assert first.eq(1).all() and second.eq(2).all()
    if rank == 0:
        value = torch.empty(1)
        senders = [dist.recv(value) for _ in range(size - 1)]
        assert sorted(senders) == list(range(1, size)), senders
    else:
        dist.send(torch.tensor([float(rank)]), 0)


def groups(rank, size):
    mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
    value = torch.ones(4) * rank
    dist.all_reduce(value, group=mesh["b"].get_group())
    assert value[0] == (1.0 if rank < 2 else 5.0), value
    ranks = [3, 1]
    pair = dist.new_group(ranks, sort_ranks=False) if "sort_ranks" in dist.new_group.__code__.co_varnames \
        else dist.new_group(sorted(ranks))
    if rank in ranks:
        value = torch.tensor([float(rank)])
        dist.broadcast(value, 3, group=pair)
        assert value.item() == 3
        dist.destroy_process_group(pair)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_splitting and backend.supports_shrinking
    # dist.split_group wants an accelerator; what it calls does not.
    odd = dist.group.WORLD.split_group([1, 3], group_name="odd", group_desc="odd ranks")
    assert (odd is None) == (rank % 2 == 0)
    if odd is not None:
        value = torch.tensor([float(rank)])
        odd.allreduce([value]).wait()
        assert value.item() == 4 and (odd.rank(), odd.size()) == (rank // 2, 2)
        alone = dist.group.WORLD.split_group([rank], group_name="odd")  # of the same name, while the first lives
        assert alone.size() == 1
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]


def merged(rank, size):
    """A group that is made of what is left of others, in a store of its own."""
    store = dist.PrefixStore("merged", dist.distributed_c10d._get_default_store())
    for kind in ("lockstep", "gloo"):
        given = lockstep_torch.Options() if kind == "lockstep" else None
        if given:
            given.heap_capacity = 64 << 20
        apart = dist.new_group(backend=f"cpu:{kind}", pg_options=given)
        together = apart.merge_remote_group(dist.PrefixStore(kind, store), size, PATIENCE, group_name=f"{kind} again")
        dist.destroy_process_group(apart)
        value = torch.zeros(size)
        if given:  # it is a world of its own, with the heap that was asked for
            try:
                lockstep_torch.empty_resident(64 << 20, group=together)
                raise AssertionError("there was room")
            except torch.OutOfMemoryError as error:
                assert "64.0 MiB" in str(error), error
        value[together.rank()] = 1  # ranks are in the order of their arrival
        together.allreduce([value]).wait()
        assert together.size() == size and value.eq(1).all(), (kind, value)
        together.shutdown()


def counted(rank, size):
    """The number of the last operation; and averages of types that gloo has none of."""
    own = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = own._get_sequence_number_for_group()
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.uint64):
        value = torch.tensor([3 * rank, 8], dtype=dtype)
        dist.all_reduce(value, op=dist.ReduceOp.AVG)
        assert value.tolist() == [3 * (size - 1) // 2, 8], (dtype, value)
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert own._get_sequence_number_for_group() == before + 5


def options_of_two_groups(rank, size):
    """They are given the same object, and neither the groups nor the user see what the other makes of it."""
    given = lockstep_torch.Options()
    before, long, short = given._timeout, *(datetime.timedelta(seconds=seconds) for seconds in (20, 5))
    groups = [dist.new_group(timeout=timeout, pg_options=given) for timeout in (long, short)]
    of_groups = [group._get_backend(torch.device("cpu")).options for group in groups]
    assert [given._timeout, *(options._timeout for options in of_groups)] == [before, long, short]


def made_by_hand(rank, size):
    """It is not the default group, whose ranks 0 and 2 it has."""
    value = torch.ones(1)
    if rank != 1:
        store = dist.PrefixStore("by hand", dist.distributed_c10d._get_default_store())
        hand = lockstep_torch.ProcessGroupLockstep(store, rank // 2, 2, PATIENCE)
        hand.allreduce([value]).wait()
    pair = dist.new_group([0, 1], backend="lockstep", timeout=datetime.timedelta(seconds=20))
    if rank != 2:
        dist.all_reduce(value, group=pair)
    return value.item()


def name_of(group):
    return dist.distributed_c10d._get_process_group_name(group)


def only_one_comes(group, rank):
    """Rank 0 alone comes, and does not take the other for one that has come: to an earlier group of that name."""
    store = dist.distributed_c10d._get_default_store()
    if rank != 0:
        store.wait(["came"])
        return
    try:
        lockstep_torch.monitored_barrier(group, SOON)
    except dist.DistBackendError:
        return
    finally:
        store.set("came", "")
    raise AssertionError("it has met a rank that did not come")


def made_again(rank, size):
    """torch gives a group the name of one that was destroyed."""
    pair = dist.new_group([0, 1], use_local_synchronization=True)
    name = name_of(pair)
    lockstep_torch.monitored_barrier(pair)
    dist.destroy_process_group(pair)
    again = dist.new_group([0, 1], use_local_synchronization=True)
    assert name_of(again) == name
    only_one_comes(again, rank)


def shrunk(rank, size):
    """Ranks 0 and 2 go on without rank 1, which leaves, and are 0 and 1 from then on."""
    early = dist.new_group([0, 2])
    if rank != 1:
        name = name_of(early)
        lockstep_torch.monitored_barrier(early)
    everybody = dist.new_group()
    if rank != 1:
        dist.barrier(group=dist.shrink_group([1], group=everybody))
    dist.barrier()  # the default group stays as it is
    if rank == 1:
        dist.destroy_process_group()
        return None
    dist.shrink_group([1])
    assert (dist.get_rank(), dist.get_world_size()) == (rank // 2, 2)
    value = torch.tensor([float(rank)])
    dist.all_reduce(value)
    again = dist.new_group([1, 0])
    dist.all_reduce(value, group=again)
    same = dist.new_group([0, 1])  # torch counts its groups anew
    assert name_of(same) == name
    only_one_comes(same, rank)
    return value.item()


def shrunk_beside_a_server(rank, size, port):
    """Rank 0 serves the store, which is there as long as rank 0 is in the world."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("lockstep", timeout=datetime.timedelta(seconds=20))
    if rank == 2:
        dist.destroy_process_group()
        return
    dist.shrink_group([2])
    value = torch.ones(1)
    dist.all_reduce(value, group=dist.new_group())
    assert value.item() == 2


def destroyed_early(rank, size):
    """What was issued is done before the group goes, also where another rank comes to it a little later."""
    pair = dist.new_group()
    values = [torch.ones(1000) for _ in range(5)]
    works = [dist.all_reduce(value, group=pair, async_op=True) for value in values] if rank == 0 else []
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("issued", "")
    else:
        store.wait(["issued"])
        time.sleep(0.1)  # rank 0 destroys its group meanwhile
        works = [dist.all_reduce(value, group=pair, async_op=True) for value in values]
    dist.destroy_process_group(pair)
    for work in works:
        work.wait()
    assert all(value.eq(size).all() for value in values)


def destroyed_unfinished(rank, size):
    """What never ends is waited for once, however many groups have some; the seconds that it took."""
    store = dist.distributed_c10d._get_default_store()
    groups = [dist.new_group() for _ in range(3)]
    if rank == 1:
        return store.wait(["destroyed"])
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in groups]
    begun = time.monotonic()
    for group in groups:
        dist.destroy_process_group(group)
    took = time.monotonic() - begun
    store.set("destroyed", "")
    assert not any(work.is_success() for work in works)
    return took


def resident(rank, size):
    whole = lockstep_torch.empty_resident(1 << 16)
    whole.fill_(rank)
    dist.all_reduce(whole)
    assert whole.eq(size * (size - 1) / 2).all()
    assert lockstep_torch.empty_resident((2, 3), dtype=torch.int8).shape == (2, 3)
    assert lockstep_torch.empty_resident(0).numel() == 0
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert group.supports_tensor_alloc(torch.device("cpu"))
    assert group.allocate_tensor(8, dtype=torch.float64, device=torch.device("cpu")).shape == (8,)
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # torch wraps the backends of the groups that it makes now
    wrapped = dist.new_group()
    lockstep_torch.monitored_barrier(wrapped)
    assert lockstep_torch.empty_resident(3, group=wrapped).shape == (3,)
    kept = lockstep_torch.empty_resident(100)
    dist.destroy_process_group()
    kept.fill_(1)
    assert kept.sum() == 100


class CollectivesTest(unittest.TestCase):
    def test_reductions_have_gloos_bits(self):
        for size in (1, 2, 3):
            World(size).run(reductions_as_gloo)

    def test_moves_have_gloos_bits(self):
        for size in (2, 4):
            World(size).run(moves_as_gloo)

    def test_a_rank_may_take_what_it_gives_where_it_is_as_with_gloo(self):
        for size in (1, 2, 3):
            World(size).run(in_place_as_gloo)

    def test_an_exchange_without_sizes_takes_any_shapes_as_gloos(self):
        World(2).run(exchanged_as_gloo)

    def test_types_shapes_and_operations_that_gloo_has_not(self):
        for size in (1, 2, 3):
            World(size).run(more_than_gloo)

    def test_many_collectives_as_one(self):
        World(2).run(coalesced)

    def test_messages(self):
        for size in (2, 3):
            World(size).run(messages)

    def test_groups_of_some_ranks(self):
        World(4).run(groups)

    def test_a_group_is_not_an_earlier_one_of_its_name(self):
        World(2).run(made_again)

    def test_operations_are_counted_and_every_integer_has_an_average(self):
        World(2).run(counted)

    def test_groups_have_options_of_their_own(self):
        World(1).run(options_of_two_groups)

    def test_a_group_that_is_made_by_hand_is_no_default_group(self):
        self.assertEqual(World(3, backend="gloo").run(made_by_hand), [3.0, 3.0, 2.0])

    def test_groups_are_merged(self):
        World(2).run(merged)

    def test_a_world_shrinks(self):
        self.assertEqual(World(3).run(shrunk), [4.0, None, 4.0])

    def test_a_world_that_has_met_at_rank_0_shrinks(self):
        World(3, joins=False).run(shrunk_beside_a_server, free_port())

    def test_a_group_is_destroyed_after_what_was_issued_in_it(self):
        World(2).run(destroyed_early)
        self.assertLess(World(2).run(destroyed_unfinished)[0], 10)

    def test_resident_memory(self):
        World(2).run(resident)


if __name__ == "__main__":
    unittest.main(warnings="ignore")  # torch has warnings for what it renames
