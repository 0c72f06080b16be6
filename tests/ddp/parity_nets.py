"""The nets of parity.py, on torch's side; parity_nets.cpp has them with the same names, in the same order. Each is given a
batch of four, and whether it is to use its layers c and d."""

import itertools

import torch
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.b = torch.nn.Linear(16, 16)
        self.c = torch.nn.Linear(16, 16)
        self.d = torch.nn.Linear(16, 16)

    def forward(self, x, use_c=True, use_d=True):
        y = torch.relu(self.norm(self.a(x)))
        y = self.b(y)
        if use_c:
            y = y + self.c(y)
        if use_d:
            y = y + self.d(y)
        return y


class Wide(torch.nn.Module):
    """Its gradients are more than the first two buckets have by default: 1 MiB and 25."""
    widths = (8, 1500, 1100, 1900, 1300, 900, 1000, 16)

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in itertools.pairwise(self.widths))

    def forward(self, x, *_):
        for layer in self.layers:
            x = torch.tanh(3 * layer(x))  # else gradients vanish
        return x


class Sparse(torch.nn.Module):
    """Embeddings whose gradients are sparse. They are halved, for the gradient of a sum is one tensor for all its terms, and
    torch divides that of an embedding where it lies: that of the other terms would be the half of what it is."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.c = torch.nn.Embedding(12, 16, sparse=True)
        self.b = torch.nn.Linear(16, 16)
        self.d = torch.nn.EmbeddingBag(12, 16, sparse=True)

    def forward(self, x, use_c=True, use_d=True):
        words = (10 * x.abs().sum(1)).long() % 12
        y = self.a(x)
        if use_c:
            y = y + 0.5 * self.c(words)
        if use_d:
            y = y + 0.5 * self.d(torch.stack([words, 11 - words], 1))
        return self.b(torch.tanh(y))


class Mixed(torch.nn.Module):
    """Parameters of four types."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.b = torch.nn.Linear(16, 16).double()
        self.c = torch.nn.Linear(16, 16).bfloat16()
        self.d = torch.nn.Linear(16, 16).half()
        self.e = torch.nn.Linear(16, 16).double()
        self.f = torch.nn.Linear(16, 16)

    def forward(self, x, use_c=True, use_d=True):
        y = torch.tanh(self.a(x))
        z = self.b(y.double())
        if use_c:
            z = z + self.c(y.bfloat16())
        if use_d:
            z = z + self.d(y.half())
        return self.f(self.e(torch.tanh(z)).float())


class Odd(torch.nn.Module):
    """A weight of two modules, a layer that is used twice, one that is frozen, one that a rank may keep to itself, and
    parameters without a dimension, without an element, and with strides of their own."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.none = torch.nn.Parameter(torch.empty(0, 8))
        self.turned = torch.nn.Parameter(torch.randn(8, 16).t() / 4)
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.c = torch.nn.Linear(8, 8)
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.conv = torch.nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.own = torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x, *_):
        self.seen += x.detach().mean(0)
        y = torch.tanh(self.b(torch.tanh(self.a(x))))
        y = self.frozen(self.c(torch.tanh(self.c(y))))
        y = self.conv(y.view(4, 2, 2, 2)).flatten(1)
        return self.own(torch.cat([y @ self.turned, self.none]) * self.scale)


class Checkpoints(torch.nn.Module):
    """Parts of forward that backward runs again; with c, one of them twice. They do not reach d."""
    reentrant = False

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.b = torch.nn.Linear(16, 16)
        self.c = torch.nn.Linear(16, 16)
        self.d = torch.nn.Linear(16, 16)

    def forward(self, x, use_c=True, use_d=True):
        y = self.a(x)
        for layer in [self.b, self.c] + [self.c] * use_c:
            y = checkpoint(lambda y, layer=layer: torch.tanh(layer(y)), y, use_reentrant=self.reentrant)
        return y + self.d(y) if use_d else y


class Reentrant(Checkpoints):
    reentrant = True


NETS = {"net": Net, "wide": Wide, "sparse": Sparse, "mixed": Mixed, "odd": Odd, "checkpoints": Checkpoints,
        "reentrant": Reentrant}
