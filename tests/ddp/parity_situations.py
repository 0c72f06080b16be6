"""The situations of parity.py, on torch's side: in each of them a rank says what error has come of it, or "". Two of
which torch would never hear, because one of its ranks waits for the other, are in the rank program alone."""

import json

import torch
import torch.distributed as dist
from parity_nets import Net, Odd, Reentrant, Sparse
from parity_training import HOOKS, end_rank, join
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

ALL, NO_C, NO_D, NEITHER = (True, True), (False, True), (True, False), (False, False)
X = torch.ones(4, 8)


def wrap(net, **options):
    return DistributedDataParallel(net, process_group=dist.new_group(), **options)  # of its own, for an error may end it


def train(net, *steps, hook=None, **options):
    model = wrap(net, **options)
    if hook:
        model.register_comm_hook(None, hook)
    for uses in steps:
        model(X, *uses).sum().backward()


def delayed(**options):
    net = Net()
    train(net, ALL, ALL, delay_all_reduce_named_params=[("d.bias", net.d.bias)], param_to_hook_all_reduce=net.a.weight,
          **options)


def delayed_until_nothing():
    wrap(Net(), delay_all_reduce_named_params=[("a.bias", None)])


def registered(times, steps=0):
    model = wrap(Net())
    for _ in range(steps):
        model(X).sum().backward()
    for _ in range(times):
        model.register_comm_hook(None, default_hooks.allreduce_hook)


def throwing_hook(state, bucket):
    raise RuntimeError("from a hook")


def short_hook(state, bucket):
    future = torch.futures.Future()
    future.set_result(torch.zeros(1))
    return future


def changed(change):
    """After the module was wrapped."""
    net = Net()
    net.c.requires_grad_(False)
    model = wrap(net)
    model(X).sum().backward()
    change(net)
    for _ in range(2):
        model(X.to(net.a.weight.dtype)).sum().backward()


def ignored(names):
    net = Odd()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, names)
    train(net, ALL, ALL)


def sparse_and_dense():
    model = wrap(Sparse())
    (model(X).sum() + model.module.c.weight.sum()).backward()


def backward_twice():
    model = wrap(Net())
    loss = model(X).sum()
    loss.backward()
    loss.backward()


def graph_of_gradients():
    model = wrap(Net())
    model(X).sum().backward(create_graph=True)


def one_uses_less():
    model = wrap(Net(), find_unused_parameters=True)
    (model(X).sum() + model(X, *NO_D).sum()).backward()
    model(X).sum().backward()


def beside_forward(steps, **options):
    net = Net()
    model = wrap(net, **options)
    for _ in range(steps):
        (model(X, *NO_D).sum() + net.d(X.repeat(1, 2)).sum()).backward()


def without_gradient():
    model = wrap(Net())
    model(X).detach().sum().backward()


def evaluated(*steps):
    model = wrap(Net())
    model.eval()
    for uses in steps:
        model(X, *uses).sum().backward()


def wrapped_twice(**options):
    net = Net()
    first, second = wrap(net, **options), wrap(net, **options)
    for _ in range(2):
        (first(X).sum() + second(X).sum()).backward()


def other_names():
    """Of layers of one shape."""
    net = torch.nn.Module()
    for name in ["a", "b"] if dist.get_rank() == 0 else ["b", "a"]:
        net.register_module(name, torch.nn.Linear(2, 2))
    wrap(net)


def frozen_by_rank(*layers):
    """The layer of its rank."""
    net = Net()
    if layer := layers[dist.get_rank()]:
        getattr(net, layer).requires_grad_(False)
    wrap(net)


SITUATIONS = {
    "unused": lambda: train(Net(), NO_D, ALL),
    "unused later": lambda: train(Net(), ALL, NO_D, ALL),
    "unused in evaluation": lambda: evaluated(NO_D, ALL),
    "unused and looked for": lambda: train(Net(), NO_D, ALL, NO_D, find_unused_parameters=True),
    "unused, looked for, with a hook": lambda: train(Net(), NO_D, ALL, hook=HOOKS["all_reduce"],
                                                     find_unused_parameters=True),
    "static": lambda: train(Net(), NO_D, NO_D, NO_D, static_graph=True),
    "static with a hook": lambda: train(Net(), NO_D, NO_D, NO_D, hook=HOOKS["all_reduce"], static_graph=True),
    "static that changes": lambda: train(Net(), NO_D, ALL, ALL, static_graph=True),
    "static and looked for": lambda: train(Net(), NO_D, NO_D, static_graph=True, find_unused_parameters=True),
    "skipped, and nothing is looked for": lambda: train(Net(), ALL, ALL, skip_all_reduce_unused_params=True),
    "delayed": delayed,
    "delayed until nothing": delayed_until_nothing,
    "delayed and static": lambda: delayed(static_graph=True),
    "delayed and looked for": lambda: delayed(find_unused_parameters=True),
    "registered": lambda: registered(1),
    "registered twice": lambda: registered(2),
    "registered late": lambda: registered(1, steps=1),
    "no hook": lambda: wrap(Net()).register_comm_hook(None, None),
    "a hook that throws": lambda: train(Net(), ALL, hook=throwing_hook),
    "a hook of another size": lambda: train(Net(), ALL, hook=short_hook),
    "bf16 on the CPU": lambda: train(Net(), ALL, hook=default_hooks.bf16_compress_hook),
    "frozen": lambda: wrap(Net().requires_grad_(False)),
    "frozen later": lambda: changed(lambda net: net.d.requires_grad_(False)),
    "unfrozen later": lambda: changed(lambda net: net.c.requires_grad_(True)),
    "added later": lambda: changed(lambda net: net.register_module("e", torch.nn.Linear(2, 2))),
    "converted later": lambda: changed(lambda net: net.double()),
    "ignored": lambda: ignored(["own.weight", "seen"]),
    "ignored, all of them": lambda: ignored([name for name, _ in Odd().named_parameters()]),
    "ignored, though there is none": lambda: ignored(["nobody"]),
    "buckets of 0 MiB": lambda: train(Net(), ALL, ALL, bucket_cap_mb=0),
    "buckets of -1 MiB": lambda: train(Net(), ALL, ALL, bucket_cap_mb=-1),
    "a list of 0 MiB": lambda: train(Net(), ALL, ALL, bucket_cap_mb_list=[0]),
    "a list of -1 MiB": lambda: train(Net(), ALL, ALL, bucket_cap_mb_list=[-1]),
    "a list of nothing": lambda: train(Net(), ALL, ALL, bucket_cap_mb_list=[]),
    "a list and a size": lambda: train(Net(), ALL, ALL, bucket_cap_mb_list=[1], bucket_cap_mb=1),
    "sparse": lambda: train(Sparse(), ALL, ALL, gradient_as_bucket_view=True),
    "sparse and unused": lambda: train(Sparse(), NO_C, find_unused_parameters=True),
    "sparse, unused and static": lambda: train(Sparse(), NO_C, NO_C, static_graph=True),
    "sparse in 16 bits": lambda: train(Sparse(), ALL, hook=HOOKS["fp16"]),
    "sparse and dense": sparse_and_dense,
    "backward twice": backward_twice,
    "a graph of gradients": graph_of_gradients,
    "one of two forwards uses less": one_uses_less,
    "beside forward": lambda: beside_forward(1, find_unused_parameters=True),
    "beside forward, static": lambda: beside_forward(3, static_graph=True),
    "without a gradient": without_gradient,
    "reentrant": lambda: train(Reentrant(), NO_C, NO_C),
    "reentrant, twice": lambda: train(Reentrant(), ALL, ALL),
    "reentrant, twice and static": lambda: train(Reentrant(), ALL, ALL, ALL, static_graph=True),
    "reentrant and looked for": lambda: train(Reentrant(), NO_C, find_unused_parameters=True),
    "reentrant and unused": lambda: train(Reentrant(), NEITHER, NO_C),
    "two wrappers at once": wrapped_twice,
    "two wrappers at once, with views": lambda: wrapped_twice(gradient_as_bucket_view=True),
    "a wrapper in a wrapper": lambda: train(wrap(Net()), ALL, ALL),
    "other names": other_names,
    "one frozen on one rank": lambda: frozen_by_rank(None, "c"),
    "another frozen on one rank": lambda: frozen_by_rank("b", "c"),
    "sample rate": lambda: wrap(Net())._set_ddp_runtime_logging_sample_rate(0),
}


# Those that differ, and why.
ERRORS_HERE_ALONE = {
    "registered late": "torch takes it; buckets that have travelled went another way",
    "static and looked for": "torch says that it does not matter; one of them is not meant",
    "skipped, and nothing is looked for": "torch ignores the option; nobody knows what to skip",
    "delayed and static": "torch reduces the delayed without a word to the search; here all gradients are of one pass",
    "delayed and looked for": "the same",
    "unfrozen later": "torch does not look: such a gradient stays each rank's own",
    "added later": "the same",
    "converted later": "torch rounds to the type of its buckets, on every step",
    "ignored, though there is none": "torch ignores what is misspelt",
    "buckets of 0 MiB": "torch makes one for each parameter, as for any size that is too small; 1e-6 says it",
    "buckets of -1 MiB": "the same",
    "a list of 0 MiB": "the same",
    "a list and a size": "torch ignores the size",
    "a wrapper in a wrapper": "torch reduces twice; here the outer one has nothing left",
    "other names": "torch compares shapes alone",
    "another frozen on one rank": "the same: it takes the gradient of one layer for that of another",
    "another shape": "rank 0 of torch waits",
    "another type": "torch does not compare it",
}
ERRORS_THERE_ALONE = {
    "bf16 on the CPU": "torch asks for NCCL by the hook's name; with another name gloo takes it",
    "sparse and unused": "torch has no empty sparse gradient",
    "sparse, unused and static": "the same",
    "a graph of gradients": "torch copies in place what needs a gradient",
    "sparse in 16 bits": "torch cannot add such; here they stay as they are",
    "one of two forwards uses less": "torch looks at the last forward alone",
    "two wrappers at once, with views": "here gradients that two models share are copied",
}
# A world of one sends nothing here, so that no pass is watched; and nobody is there to differ from.
UNNOTICED_ALONE = {
    "unused", "unused later", "unused in evaluation", "static that changes", "beside forward", "sparse and dense",
    "reentrant, twice", "reentrant and looked for", "reentrant and unused", "frozen later", "unfrozen later",
    "added later", "converted later", "registered late", "other names", "another frozen on one rank", "another shape",
    "another type",
}


def error_of(act):
    try:
        act()
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        return str(error) or type(error).__name__
    return ""


def find_errors(rank, size, folder, _, port):
    join(rank, size, port)
    found = {name: error_of(act) for name, act in SITUATIONS.items()}
    (folder / f"torch{rank}.json").write_text(json.dumps(found))
    end_rank()
