"""The same seeded calls on torch's gloo and on Lockstep: every result is compared, bit by bit where the arithmetic is
exact and to a tolerance elsewhere, and every wrong call by the kind of its error.

    collective_parity.py --lockstep COMMAND --rank-program PROGRAM [--seed N] [--calls N] [--keep FOLDER]

It must be run by a python3 that has torch. Worlds of 3, 2 and 4 ranks have a script each: call_script() for the first,
which is long and has gradients, and every_pair() for all of them, which has each type with each operation that gloo has
for it. Both sides read the script, in which each call is a line of words, and write for each call and rank a line
"CALL RANK ok VALUE...", or "CALL RANK refused" for a call that was found to be wrong before anything was sent, or
"CALL RANK failed". Values are the elements of all tensors that the call wrote, as numbers; a complex one is two.
"""

import argparse
import datetime
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist

sys.dont_write_bytecode = True
import composed_calls  # noqa: E402
import differentiable_calls  # noqa: E402
import object_calls  # noqa: E402
import wrong_calls  # noqa: E402

SIZES = [3, 2, 4]
DTYPES = {name: getattr(torch, name) for name in (
    "float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool", "complex64", "complex128")}
OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
       "max": dist.ReduceOp.MAX, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-3, "bfloat16": 1e-2, "complex64": 1e-5, "complex128": 1e-12}

# By their newer names where torch has them.
ALL_GATHER_SINGLE = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER_SINGLE = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

COLLECTIVES = ["broadcast", "all_reduce", "all_reduce_coalesced", "reduce", "all_gather", "all_gather_single", "gather",
               "scatter", "reduce_scatter", "reduce_scatter_single", "all_to_all", "all_to_all_single", "ring", "any_source",
               "barrier", *composed_calls.REDUCING, *composed_calls.MOVING, *object_calls.CALLS]
REDUCING = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single",
            *composed_calls.REDUCING)
MOVING = [call for call in COLLECTIVES if call not in REDUCING and call != "barrier"]


def groups_of(size):
    return {"all": list(range(size)), "pair": [0, size - 1]}


def ops_of(dtype):
    """Those that gloo has for the type."""
    if "complex" in dtype:
        return ["sum", "avg"]
    if "float" in dtype:
        return ["sum", "avg", "product", "min", "max"]
    return ["sum", "product", "min", "max", "band", "bor", "bxor"]


def dtypes_of(call):
    """Those that gloo has for the call."""
    if call == "sparse_all_reduce":
        return ["float32", "float64"]
    return [dtype for dtype in DTYPES if call != "gather" or "complex" not in dtype]


def every_pair(first, size):
    """Each type with each operation, by one reducing call after the other, each type with each call that moves, and every
    wrong call."""
    lines = []

    def add(call, dtype="float32", op="sum"):
        number = first + len(lines)
        lines.append(f"{number} {call} all {dtype} {op} {number % size} {number} whole plain 5")

    for dtype in DTYPES:
        for op in ops_of(dtype):
            add(REDUCING[(len(lines) + size) % len(REDUCING)], dtype, op)
    for call in [*MOVING, "sparse_all_reduce"]:
        for dtype in dtypes_of(call):
            add(call, dtype)
    for call in composed_calls.ONCE:
        add(call)
    return lines + [f"{first + len(lines) + i} wrong {which}" for i, which in enumerate(wrong_calls.CALLS)]


def call_script(seed, count, size):
    """The calls: "ID CALL GROUP DTYPE OP ROOT SEED VALUES LAYOUT SIZE..." or "ID wrong WHICH". Calls with
    an odd seed are asynchronous on our side; of four seeds the latter two give the root as a rank in the group."""
    groups = groups_of(size)
    chosen = random.Random(seed)
    lines = []
    for number in range(count):
        if number % 8 == 7:
            lines.append(f"{number} wrong {wrong_calls.CALLS[number // 8 % len(wrong_calls.CALLS)]}")
            continue
        call = COLLECTIVES[number % len(COLLECTIVES)] if number < 2 * len(COLLECTIVES) else chosen.choice(COLLECTIVES)
        dtype = chosen.choice(dtypes_of(call))
        whole = dtype not in ("float32", "float64", "complex64", "complex128") or chosen.random() < 0.6
        op = chosen.choice(ops_of(dtype))
        group = chosen.choice(list(groups))
        # A group's root is given as a global rank.
        root = chosen.choice(groups[group])
        dims = [chosen.choice([0, 1, 2, 3, 5]) if chosen.random() < 0.2 else chosen.choice([1, 2, 3, 5, 8])
                for _ in range(chosen.choice([1, 1, 2, 3]))]
        if call == "any_source":
            dims = [max(dim, 1) for dim in dims]  # gloo has no empty message from anyone
        layout = chosen.choice(["plain", "plain", "strided", "turned"])  # ours; gloo takes plain ones only
        values = "whole" if whole else "fractions"
        lines.append(f"{number} {call} {group} {dtype} {op} {root} {chosen.randrange(1000)} {values} {layout} "
                     + " ".join(map(str, dims)))
    lines.append(f"{count} missing_at_barrier all float32 sum 0 0 whole plain 1")
    return lines + differentiable_calls.script(count + 1, chosen)


def fill(sizes, dtype, seed, rank, part, values):
    """What the part of a rank holds, by a formula that the other side has too. Small enough to be exact in 16 bits."""
    count = 1
    for size in sizes:
        count *= size
    numbers = [((i * 7 + rank * 5 + part * 3 + seed) % 4) - (0 if dtype == "uint8" else 1) for i in range(count)]
    if values == "fractions":
        numbers = [number + ((i * 13 + rank * 11 + seed) % 97) / 97 for i, number in enumerate(numbers)]
    tensor = torch.tensor(numbers, dtype=torch.float64).reshape(sizes)
    if "complex" in dtype:
        tensor = torch.complex(tensor, 2 - tensor)
    return tensor.to(DTYPES[dtype])


class Rank(composed_calls.ComposedCalls, differentiable_calls.DifferentiableCalls, object_calls.ObjectCalls,
           wrong_calls.WrongCalls):
    """One rank of torch's."""

    def __init__(self, rank, size, groups):
        self.rank = rank
        self.size = size
        self.groups = groups

    def run(self, words):
        if words[1] == "wrong":
            return getattr(self, words[2])()
        number, call, group, dtype, op, root, seed, values, _ = words[:9]
        sizes = [int(size) for size in words[9:]]
        members = groups_of(self.size)[group]
        if self.rank not in members:
            return []
        self.group = None if group == "all" else self.groups[group]
        self.members, self.n, self.own = members, len(members), members.index(self.rank)
        self.dtype, self.sizes, self.op, self.root, self.number = dtype, sizes, OPS[op], int(root), int(number)
        self.as_group_rank = int(seed) // 2 % 2 == 1
        form, root = ("group_", members.index(self.root)) if self.as_group_rank else ("", self.root)
        self.src, self.dst = {f"{form}src": root}, {f"{form}dst": root}
        self.make = lambda part, sizes=sizes: fill(sizes, dtype, int(seed), self.rank, part, values)
        self.empty = lambda sizes=sizes: torch.zeros(sizes, dtype=DTYPES[dtype])
        return getattr(self, call)()

    def broadcast(self):
        tensor = self.make(0)
        dist.broadcast(tensor, group=self.group, **self.src)
        return [tensor]

    def all_reduce(self):
        tensor = self.make(0)
        dist.all_reduce(tensor, op=self.op, group=self.group)
        return [tensor]

    def all_reduce_coalesced(self):
        tensors = [self.make(0), self.make(1)]
        for tensor in tensors:
            dist.all_reduce(tensor, op=self.op, group=self.group)
        return tensors

    def reduce(self):
        tensor = self.make(0)
        dist.reduce(tensor, op=self.op, group=self.group, **self.dst)
        return [tensor] if self.rank == self.root else []  # gloo leaves anything elsewhere

    def all_gather(self):
        outputs = [self.empty() for _ in range(self.n)]
        dist.all_gather(outputs, self.make(0), group=self.group)
        return outputs

    def all_gather_single(self):
        output = self.empty([self.n * self.sizes[0], *self.sizes[1:]])
        ALL_GATHER_SINGLE(output, self.make(0), group=self.group)
        return [output]

    def gather(self):
        outputs = [self.empty() for _ in range(self.n)] if self.rank == self.root else None
        dist.gather(self.make(0), outputs, group=self.group, **self.dst)
        return outputs or []

    def scatter(self):
        output = self.empty()
        parts = [self.make(part) for part in range(self.n)] if self.rank == self.root else None
        dist.scatter(output, parts, group=self.group, **self.src)
        return [output]

    def reduce_scatter(self):
        output = self.empty()
        dist.reduce_scatter(output, [self.make(part) for part in range(self.n)], op=self.op, group=self.group)
        return [output]

    def reduce_scatter_single(self):
        output = self.empty()
        REDUCE_SCATTER_SINGLE(output, torch.cat([self.make(part) for part in range(self.n)]), op=self.op,
                              group=self.group)
        return [output]

    def all_to_all(self):
        outputs = [self.empty() for _ in range(self.n)]
        dist.all_to_all(outputs, [self.make(part) for part in range(self.n)], group=self.group)
        return outputs

    def all_to_all_single(self):
        # Rank a sends b + 1 times the rows to rank b.
        rows, rest = self.sizes[0], self.sizes[1:]
        send = [rows * (part + 1) for part in range(self.n)]
        recv = [rows * (self.own + 1)] * self.n
        output = self.empty([sum(recv), *rest])
        dist.all_to_all_single(output, self.make(0, [sum(send), *rest]), recv, send, group=self.group)
        return [output]

    def ring(self):
        output = self.empty()
        to, source = self.members[(self.own + 1) % self.n], self.members[self.own - 1]
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, self.make(0), to, self.group),
                                        dist.P2POp(dist.irecv, output, source, self.group)])
        for work in works:
            work.wait()
        return [output]

    def any_source(self):
        # A tag of its own: whoever is quick may be in a later call of this kind already.
        if self.rank != self.root:
            dist.send(self.make(0), group=self.group, tag=self.number, **self.dst)
            return []
        outputs = {}
        for _ in range(self.n - 1):
            tensor = self.empty()
            outputs[dist.recv(tensor, group=self.group, tag=self.number)] = tensor
        return [outputs[sender] for sender in self.members if sender != self.rank]

    def sparse_all_reduce(self):
        tensor = self.make(0).to_sparse()
        dist.all_reduce(tensor, group=self.group)
        return [tensor.to_dense()]

    def barrier(self):
        dist.barrier(group=self.group)
        return []


def report(number, rank, tensors):
    values = []
    for tensor in tensors:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.dtype == torch.bool:
            tensor = tensor.view(torch.uint8) != 0  # gloo adds the bytes
        values += [repr(value) for value in tensor.to(torch.float64).flatten().tolist()]
    return " ".join([number, str(rank), "ok", *values])


def torch_rank(rank, size, folder, meeting, script):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=120))
    groups = {name: dist.new_group(ranks) for name, ranks in groups_of(size).items()}
    side = Rank(rank, size, groups)
    lines = []
    for words in script:
        try:
            lines.append(report(words[0], rank, side.run(words)))
        except (ValueError, TypeError, RuntimeError, LookupError) as error:
            if words[1] != "wrong":
                raise RuntimeError(f"torch refuses call {' '.join(words)}") from error
            lines.append(f"{words[0]} {rank} {'failed' if isinstance(error, dist.DistError) else 'refused'}")
    (folder / f"torch.{rank}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def run_torch(size, folder, meeting, script):
    """Ranks that are forked, so that torch is imported once; it has not been used yet."""
    children = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch_rank(rank, size, folder, meeting, script)
                code = 0
            except BaseException:  # whatever it is, this process ends here
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if any(codes):
        sys.exit(f"collective_parity: torch's ranks ended with {codes}")


def same(mine, theirs, tolerance):
    if mine[2] != theirs[2] or len(mine) != len(theirs):
        return False
    if tolerance is None:
        return mine[3:] == theirs[3:]
    pairs = [(float(a), float(b)) for a, b in zip(mine[3:], theirs[3:])]
    return all(abs(a - b) <= tolerance * max(1, abs(a), abs(b)) for a, b in pairs)


def compare(size, folder, script):
    wrong = 0
    for rank in range(size):
        sides = [(folder / f"{name}.{rank}").read_text(encoding="utf-8").splitlines() for name in ("lockstep", "torch")]
        if any(len(side) != len(script) for side in sides):
            sys.exit(f"collective_parity: rank {rank} answered {[len(side) for side in sides]} of {len(script)} calls")
        for words, mine, theirs in zip(script, *sides):
            tolerance = None
            if words[1] in REDUCING and (words[7] == "fractions" or words[4] == "avg"):
                tolerance = TOLERANCE[words[3]]
            if not same(mine.split(), theirs.split(), tolerance):
                wrong += 1
                print(f"{' '.join(words)}\n  lockstep: {mine[:400]}\n  torch:    {theirs[:400]}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--rank-program", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    wrong = 0
    for size in SIZES:
        lines = call_script(options.seed, options.calls, size) if size == SIZES[0] else []
        lines += every_pair(len(lines), size)
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.keep / str(size) if options.keep else pathlib.Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "script").write_text("\n".join(lines) + "\n", encoding="utf-8")
            script = [line.split() for line in lines]
            run_torch(size, folder, pathlib.Path(temporary) / "meeting", script)
            subprocess.run([options.lockstep, "run", "--nproc", str(size), options.rank_program, folder], check=True)
            differ = compare(size, folder, script)
        print(f"collective_parity: {len(script)} calls on {size} ranks, {differ} answers differ")
        wrong += differ
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
