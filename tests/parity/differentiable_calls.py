"""The calls of collective_parity.py that have gradients, on torch's side: torch.distributed.nn.functional and the
functional collectives. Each answers with its outputs and the gradients of its inputs."""

import warnings

import torch._dynamo  # the functional collectives use it: once here, before the ranks are forked
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn

# Deprecated in the newest torch, and what we compare with.
warnings.simplefilter("ignore", FutureWarning)

# By their newer names where torch has them.
ALL_GATHER = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
REDUCE_SCATTER = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor

CALLS = ["nn_all_reduce", "nn_broadcast", "nn_reduce", "nn_all_gather", "nn_gather", "nn_scatter", "nn_reduce_scatter",
         "nn_all_to_all", "nn_all_to_all_single", "functional_all_reduce", "functional_all_gather_single",
         "functional_reduce_scatter_single", "functional_all_to_all_single", "functional_permute_tensor"]
SIZES = ["1", "2 3", "3 1 2"]
FIRST_WEIGHT = 10  # the part of which the weights of the outputs are made


def script(first, chosen):
    """Lines as call_script() writes them. Whole numbers of float64: every result is exact."""
    lines = []
    for call in CALLS:
        for sizes in SIZES:
            layout = chosen.choice(["plain", "strided", "turned"])
            lines.append(f"{first + len(lines)} {call} all float64 sum {chosen.randrange(3)} {chosen.randrange(1000)} "
                         f"whole {layout} {sizes}")
    return lines


class DifferentiableCalls:
    """For a rank that has make(part, sizes), empty(sizes), sizes, n, own, rank, root and group."""

    def with_gradients(self, inputs, call):
        for tensor in inputs:
            tensor.requires_grad_()
        outputs = list(call(inputs))
        losses = [(self.make(FIRST_WEIGHT + i, list(y.shape)) * y).sum() for i, y in enumerate(outputs)]
        sum(losses).backward()
        return [y.detach() for y in outputs] + [x.grad for x in inputs]

    def parts(self):
        return [self.make(part) for part in range(self.n)]

    def nn_all_reduce(self):
        return self.with_gradients([self.make(0)], lambda x: [nn.all_reduce(x[0])])

    def nn_broadcast(self):
        return self.with_gradients([self.make(0)], lambda x: [nn.broadcast(x[0], self.root)])

    def nn_reduce(self):
        answers = self.with_gradients([self.make(0)], lambda x: [nn.reduce(x[0], self.root)])
        return answers if self.rank == self.root else answers[1:]  # gloo leaves anything elsewhere

    def nn_all_gather(self):
        return self.with_gradients([self.make(0)], lambda x: nn.all_gather(x[0]))

    def nn_gather(self):
        return self.with_gradients([self.make(0)], lambda x: nn.gather(x[0], self.root))

    def nn_scatter(self):
        return self.with_gradients(self.parts(), lambda x: [nn.scatter(x, self.root)])

    def nn_reduce_scatter(self):
        return self.with_gradients(self.parts(), lambda x: [nn.reduce_scatter(self.empty(), x)])

    def nn_all_to_all(self):
        return self.with_gradients(self.parts(),
                                   lambda x: nn.all_to_all([self.empty() for _ in range(self.n)], x))

    def splits(self):
        # Rank a sends b + 1 times the rows to rank b.
        rows = self.sizes[0]
        return [rows * (self.own + 1)] * self.n, [rows * (part + 1) for part in range(self.n)]

    def nn_all_to_all_single(self):
        receive, send = self.splits()
        output = self.empty([sum(receive), *self.sizes[1:]])
        return self.with_gradients([self.make(0, [sum(send), *self.sizes[1:]])],
                                   lambda x: [nn.all_to_all_single(output, x[0], receive, send)])

    def functional_all_reduce(self):
        return self.with_gradients([self.make(0)], lambda x: [functional.all_reduce(x[0], "sum", dist.group.WORLD)])

    def functional_all_gather_single(self):
        last = len(self.sizes) - 1
        return self.with_gradients([self.make(0)], lambda x: [ALL_GATHER(x[0], last, dist.group.WORLD)])

    def functional_reduce_scatter_single(self):
        last = len(self.sizes) - 1
        return self.with_gradients([self.make(0, [*self.sizes[:-1], self.sizes[-1] * self.n])],
                                   lambda x: [REDUCE_SCATTER(x[0], "sum", last, dist.group.WORLD)])

    def functional_all_to_all_single(self):
        receive, send = self.splits()
        return self.with_gradients(
            [self.make(0, [sum(send), *self.sizes[1:]])],
            lambda x: [functional.all_to_all_single(x[0], receive, send, dist.group.WORLD)])

    def functional_permute_tensor(self):
        # torch counts elements as rows, so its tensor has one dimension.
        return self.with_gradients([self.make(0).flatten()],
                                   lambda x: [functional.permute_tensor(x[0], [1, 2, 0], dist.group.WORLD)])
