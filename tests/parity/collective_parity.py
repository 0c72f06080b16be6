"""The same seeded calls on torch's gloo and on Lockstep: every result is compared, bit by bit where the arithmetic is
exact and to a tolerance elsewhere, and every wrong call by the kind of its error.

    collective_parity.py --lockstep COMMAND --rank-program PROGRAM [--seed N] [--calls N] [--keep FOLDER]

It must be run by a python3 that has torch. Both sides read one script of calls, in which each is a line of words as
call_script() writes them, and write for each call and rank a line "CALL RANK ok VALUE..." or "CALL RANK refused". Values
are the elements of all tensors that the call wrote, as numbers.
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
import differentiable_calls  # noqa: E402

SIZE = 3
GROUPS = {"all": [0, 1, 2], "pair": [0, 2]}
# Those that gloo reduces.
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
          "int32": torch.int32, "int64": torch.int64, "int8": torch.int8, "uint8": torch.uint8}
OPS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
       "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR}
BITWISE = ("band", "bor", "bxor")
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}

# By their newer names where torch has them.
ALL_GATHER_SINGLE = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER_SINGLE = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

COLLECTIVES = ["broadcast", "all_reduce", "all_reduce_coalesced", "reduce", "all_gather", "all_gather_single", "gather",
               "scatter", "reduce_scatter", "reduce_scatter_single", "all_to_all", "all_to_all_single", "ring", "barrier"]
REDUCING = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single")
# Calls that every rank refuses for itself, so that nobody waits for anybody.
WRONG = ["short_list", "long_list", "mixed_types", "no_root", "two_roots", "root_out_of_range", "float_band",
         "wrong_output_size", "bad_splits", "send_to_self", "recv_from_self", "empty_batch", "group_rank_of_stranger"]


def call_script(seed, count):
    """The calls: "ID CALL GROUP DTYPE OP ROOT SEED VALUES LAYOUT SIZE..." or "ID wrong WHICH". Calls with
    an odd seed are asynchronous on our side."""
    chosen = random.Random(seed)
    lines = []
    for number in range(count):
        if number % 8 == 7:
            lines.append(f"{number} wrong {WRONG[number // 8 % len(WRONG)]}")
            continue
        call = COLLECTIVES[number % len(COLLECTIVES)] if number < 2 * len(COLLECTIVES) else chosen.choice(COLLECTIVES)
        dtype = chosen.choice(list(DTYPES))
        whole = dtype not in TOLERANCE or chosen.random() < 0.6
        op = chosen.choice([op for op in OPS if "int" in dtype or op not in BITWISE])
        group = chosen.choice(list(GROUPS))
        # A group's root is given as a global rank.
        root = chosen.choice(GROUPS[group])
        dims = [chosen.choice([0, 1, 2, 3, 5]) if chosen.random() < 0.2 else chosen.choice([1, 2, 3, 5, 8])
                for _ in range(chosen.choice([1, 1, 2, 3]))]
        layout = chosen.choice(["plain", "plain", "strided", "turned"])  # ours; gloo takes plain ones only
        values = "whole" if whole else "fractions"
        lines.append(f"{number} {call} {group} {dtype} {op} {root} {chosen.randrange(1000)} {values} {layout} "
                     + " ".join(map(str, dims)))
    return lines + differentiable_calls.script(count, chosen)


def fill(sizes, dtype, seed, rank, part, values):
    """What the part of a rank holds, by a formula that the other side has too. Small enough to be exact in 16 bits."""
    count = 1
    for size in sizes:
        count *= size
    numbers = [((i * 7 + rank * 5 + part * 3 + seed) % 4) - (0 if dtype == "uint8" else 1) for i in range(count)]
    if values == "fractions":
        numbers = [number + ((i * 13 + rank * 11 + seed) % 97) / 97 for i, number in enumerate(numbers)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(sizes).to(DTYPES[dtype])


class Rank(differentiable_calls.DifferentiableCalls):
    """One rank of torch's."""

    def __init__(self, rank, groups):
        self.rank = rank
        self.groups = groups

    def run(self, words):
        if words[1] == "wrong":
            return getattr(self, words[2])()
        _, call, group, dtype, op, root, seed, values, _ = words[:9]
        sizes = [int(size) for size in words[9:]]
        members = GROUPS[group]
        if self.rank not in members:
            return []
        self.group = None if group == "all" else self.groups[group]
        self.members, self.n, self.own = members, len(members), members.index(self.rank)
        self.dtype, self.sizes, self.op, self.root = dtype, sizes, OPS[op], int(root)
        self.make = lambda part, sizes=sizes: fill(sizes, dtype, int(seed), self.rank, part, values)
        self.empty = lambda sizes=sizes: torch.zeros(sizes, dtype=DTYPES[dtype])
        return getattr(self, call)()

    def broadcast(self):
        tensor = self.make(0)
        dist.broadcast(tensor, src=self.root, group=self.group)
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
        dist.reduce(tensor, dst=self.root, op=self.op, group=self.group)
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
        dist.gather(self.make(0), outputs, dst=self.root, group=self.group)
        return outputs or []

    def scatter(self):
        output = self.empty()
        parts = [self.make(part) for part in range(self.n)] if self.rank == self.root else None
        dist.scatter(output, parts, src=self.root, group=self.group)
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

    def barrier(self):
        dist.barrier(group=self.group)
        return []

    # Wrong calls.
    def short_list(self):
        dist.all_gather([torch.ones(2)], torch.ones(2))

    def long_list(self):
        dist.reduce_scatter(torch.ones(2), [torch.ones(2)] * (SIZE + 1))

    def mixed_types(self):
        dist.all_gather([torch.ones(2, dtype=torch.int32)] * SIZE, torch.ones(2))

    def no_root(self):
        dist.broadcast(torch.ones(2))

    def two_roots(self):
        dist.broadcast(torch.ones(2), src=0, group_src=0)

    def root_out_of_range(self):
        dist.broadcast(torch.ones(2), src=SIZE)

    def float_band(self):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)

    def wrong_output_size(self):
        ALL_GATHER_SINGLE(torch.ones(2 * SIZE + 1), torch.ones(2))

    def bad_splits(self):
        dist.all_to_all_single(torch.ones(SIZE), torch.ones(SIZE), [1] * SIZE, [2] * SIZE)

    def send_to_self(self):
        dist.send(torch.ones(2), dst=self.rank)

    def recv_from_self(self):
        dist.recv(torch.ones(2), src=self.rank)

    def empty_batch(self):
        dist.batch_isend_irecv([])

    def group_rank_of_stranger(self):
        dist.get_group_rank(self.groups["pair"] if self.rank != 1 else dist.group.WORLD, 1 if self.rank != 1 else 7)


def report(number, rank, tensors):
    values = []
    for tensor in tensors:
        values += [repr(value) for value in tensor.to(torch.float64).flatten().tolist()]
    return " ".join([number, str(rank), "ok", *values])


def torch_rank(rank, folder, meeting, script):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=SIZE,
                            timeout=datetime.timedelta(seconds=120))
    groups = {name: dist.new_group(ranks) for name, ranks in GROUPS.items()}
    side = Rank(rank, groups)
    lines = []
    for words in script:
        try:
            lines.append(report(words[0], rank, side.run(words)))
        except (ValueError, TypeError, RuntimeError, LookupError) as error:
            if words[1] != "wrong":
                raise RuntimeError(f"torch refuses call {' '.join(words)}") from error
            lines.append(f"{words[0]} {rank} refused")
    (folder / f"torch.{rank}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def run_torch(folder, meeting, script):
    """Ranks that are forked, so that torch is imported once; it has not been used yet."""
    children = []
    for rank in range(SIZE):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch_rank(rank, folder, meeting, script)
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


def compare(folder, script):
    wrong = 0
    for rank in range(SIZE):
        sides = [(folder / f"{name}.{rank}").read_text(encoding="utf-8").splitlines() for name in ("lockstep", "torch")]
        if any(len(side) != len(script) for side in sides):
            sys.exit(f"collective_parity: rank {rank} answered {[len(side) for side in sides]} of {len(script)} calls")
        for words, mine, theirs in zip(script, *sides):
            tolerance = None
            if words[1] in REDUCING and words[7] == "fractions":
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
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        lines = call_script(options.seed, options.calls)
        (folder / "script").write_text("\n".join(lines) + "\n", encoding="utf-8")
        script = [line.split() for line in lines]
        run_torch(folder, pathlib.Path(temporary) / "meeting", script)
        subprocess.run([options.lockstep, "run", "--nproc", str(SIZE), options.rank_program, folder], check=True)
        wrong = compare(folder, script)
    print(f"collective_parity: {len(script)} calls on {SIZE} ranks, {wrong} answers differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
