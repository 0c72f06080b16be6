"""gloo's side of `lockstep bench all_reduce` and the like: one rank of torch.distributed.

    gloo_collective_peer.py SOCKET RENDEZVOUS RANK SIZE

What is said over the socket, and what is filled, timed and verified, is in collective_peer.h and pattern.h.
"""

import gc
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

ROOT = 0
PER_RANK, PER_BLOCK, PER_ITERATION, LONGEST_PERIOD = 17, 29, 7, 113
EXACT_UP_TO = {torch.int8: 127, torch.uint8: 255, torch.bfloat16: 256, torch.float16: 2048}
BLOCKS = {"all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"}


class Pattern:
    def __init__(self, dtype, size, block):
        largest = EXACT_UP_TO.get(dtype, 1 << 24) // size
        self.period = min(max(largest + 1, 2), LONGEST_PERIOD)
        self.block = block
        one = torch.arange(self.period)
        total = sum((one + PER_RANK * rank) % self.period for rank in range(size))
        repeats = block // self.period + 2
        self.given_table, self.summed_table = one.to(dtype).repeat(repeats), total.to(dtype).repeat(repeats)

    def window(self, table, start):
        return table[start % self.period:][:self.block]

    def given(self, rank, block, iteration):
        return self.window(self.given_table, PER_RANK * rank + PER_BLOCK * block + PER_ITERATION * iteration)

    def summed(self, block, iteration):
        return self.window(self.summed_table, PER_BLOCK * block + PER_ITERATION * iteration)


class Peer:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.case = None
        self.iteration = 0

    def shape(self, op, elements):
        """Elements of a block, input blocks, output blocks."""
        n = self.size
        on_root = n if self.rank == ROOT else 0
        block = elements // n if op in BLOCKS else elements
        inputs, outputs = {"all_gather": (1, n), "gather": (1, on_root), "scatter": (on_root, 1),
                           "reduce_scatter": (n, 1), "all_to_all": (n, n), "send_recv": (1, 1),
                           "barrier": (0, 0)}.get(op, (0, 1))
        return (0 if op == "barrier" else block), inputs, outputs

    def expected(self, op, block, iteration):
        """What the operation must leave in that output block, or None."""
        if op == "all_reduce" or (op == "reduce" and self.rank == ROOT):
            return self.pattern.summed(0, iteration)
        if op == "reduce_scatter":
            return self.pattern.summed(self.rank, iteration)
        if op == "broadcast":
            return self.pattern.given(ROOT, 0, iteration)
        if op == "scatter":
            return self.pattern.given(ROOT, self.rank, iteration)
        if op in ("all_gather", "gather"):
            return self.pattern.given(block, 0, iteration)
        if op == "all_to_all":
            return self.pattern.given(block, self.rank, iteration)
        if op == "send_recv":
            partner = self.partner()
            return None if partner is None else self.pattern.given(partner, 0, iteration)
        return None

    def partner(self):
        """partner_of() of collective_case.h."""
        half = self.size // 2
        return (self.rank + half) % (2 * half) if self.rank < 2 * half else None

    def call(self, op, inputs, outputs):
        """One operation on these buffers, as a function."""
        partner = self.partner()
        on_root = self.rank == ROOT

        def blocks(tensor):
            return list(tensor.view(self.size, -1)) if on_root else None

        def send_recv():
            if partner is None:
                return
            if self.rank < partner:
                dist.send(inputs, partner)
            dist.recv(outputs, partner)
            if self.rank > partner:
                dist.send(inputs, partner)

        if op == "gather":
            parts = blocks(outputs)
            return lambda: dist.gather(inputs, parts, ROOT)
        if op == "scatter":
            parts = blocks(inputs)
            return lambda: dist.scatter(outputs, parts, ROOT)
        return {"all_reduce": lambda: dist.all_reduce(outputs),
                "broadcast": lambda: dist.broadcast(outputs, ROOT),
                "reduce": lambda: dist.reduce(outputs, ROOT),
                "all_gather": lambda: dist.all_gather_into_tensor(outputs, inputs),
                "reduce_scatter": lambda: dist.reduce_scatter_tensor(outputs, inputs),
                "all_to_all": lambda: dist.all_to_all_single(outputs, inputs),
                "barrier": dist.barrier,
                "send_recv": send_recv}[op]

    def prepare(self, op, dtype_name, size_in_bytes, iterations):
        """Rounds of one case come one after the other: its buffers are made once."""
        case = (op, dtype_name, size_in_bytes, iterations)
        if case == self.case:
            return
        self.case, self.slots = case, []
        dtype = getattr(torch, dtype_name)
        block, inputs, outputs = self.shape(op, size_in_bytes // dtype.itemsize)
        self.pattern = Pattern(dtype, self.size, block)
        for _ in range(iterations):
            given, got = torch.zeros(inputs * block, dtype=dtype), torch.zeros(outputs * block, dtype=dtype)
            self.slots.append((given.view(inputs, block), got.view(outputs, block), self.call(op, given, got)))

    def fill(self, op):
        for i, (inputs, outputs, _) in enumerate(self.slots):
            if op == "scatter" and self.rank != ROOT:
                continue
            for block, target in enumerate(inputs if len(inputs) else outputs):
                target.copy_(self.pattern.given(self.rank, block, self.iteration + i))

    def verify(self, op):
        right = True
        for i, (_, outputs, _) in enumerate(self.slots):
            for block, got in enumerate(outputs):
                expected = self.expected(op, block, self.iteration + i)
                right = right and (expected is None or torch.equal(got, expected))
        return right

    def run(self, op, dtype, size_in_bytes, _, iterations, batches):
        try:
            self.prepare(op, dtype, int(size_in_bytes), int(iterations))
            calls = [call for _, _, call in self.slots]
            verified, cpu, times = True, 0, []
            for batch in range(-1, int(batches)):
                self.fill(op)
                dist.barrier()
                cpu_start = time.process_time_ns()
                start = time.monotonic_ns()
                for call in calls:
                    call()
                end = time.monotonic_ns()
                cpu_end = time.process_time_ns()
                dist.barrier()  # whoever is out first would take the core of one that is not
                verified = self.verify(op) and verified
                self.iteration += len(self.slots)
                if batch >= 0:
                    cpu += cpu_end - cpu_start
                    times += [start, end]
            return f"ran {int(verified)} {cpu} {' '.join(map(str, times))}"
        except (NotImplementedError, RuntimeError) as error:  # of every rank, before anything is sent
            return "lacks " + " ".join(str(error).splitlines()[0].split())


def main():
    path, rendezvous, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    stream = link.makefile("rw")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    peer = Peer(rank, size)
    stream.write(f"rank {rank} torch {torch.__version__}\n")
    stream.flush()
    gc.disable()
    for line in stream:
        stream.write(peer.run(*line.split()[1:]) + "\n")
        stream.flush()
    os._exit(0)  # the others may be gone: nobody waits for them


if __name__ == "__main__":
    main()
