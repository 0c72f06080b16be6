"""The trainings of parity.py, on torch's side: what each rank's gradients, buffers and buckets come to in every step."""

import json
import os

import torch
import torch.distributed as dist
from parity_nets import NETS
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

OPTIONS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "bucket_cap_mb", "bucket_cap_mb_list",
           "batched_grad_copy", "skip_all_reduce_unused_params", "forward_sync_buffers", "broadcast_buffers")
IGNORED, DELAYED, UNTIL = "parameters_and_buffers_to_ignore", "delay_all_reduce_named_params", "param_to_hook_all_reduce"
HOOKS = {
    "all_reduce": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "fp16 around all_reduce": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    "bf16 around all_reduce": default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
    "noop": debugging_hooks.noop_hook,
}


class Pass:
    """How a step comes from a batch to gradients: a function of this class, by its name; each gives the loss."""

    def __init__(self, model, x, uses):
        self.model, self.x, self.uses = model, x, uses

    def loss(self, x):
        return self.model(x, *self.uses).square().mean()

    def plain(self):
        loss = self.loss(self.x)
        loss.backward()
        return loss

    def accumulated(self):
        with self.model.no_sync():
            self.loss(self.x).backward()
        return self.plain()

    def two_forwards(self):
        loss = self.loss(self.x) + self.loss(-self.x)
        loss.backward()
        return loss

    def two_backwards(self):
        first, second = self.loss(self.x), self.loss(-self.x)
        first.backward()
        second.backward()
        return first + second

    def retained(self):
        loss = self.loss(self.x)
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    def forward_in_vain(self):
        self.loss(self.x)
        return self.plain()

    def evaluated_between(self):
        self.model.eval()
        with torch.no_grad():
            self.loss(self.x)
        self.model.train()
        return self.plain()


def join(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def end_rank():
    """A Reducer that is the last to let go of a gloo group waits for its threads, one of which may wait for the GIL."""
    dist.barrier()
    os._exit(0)


def numbers(tensor):
    """All of them, or some hundreds of those of a large one; numbers() of the rank program takes the same."""
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    return tensor.detach().flatten()[::max(1, tensor.numel() // 500)].double().tolist()


def wrapped(net, how):
    options = {key: how[key] for key in OPTIONS if key in how}
    parameters = dict(net.named_parameters())
    if DELAYED in how:
        options |= {DELAYED: [(name, parameters[name]) for name in how[DELAYED]], UNTIL: parameters[how[UNTIL]]}
    if IGNORED in how:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, how[IGNORED])
    model = DistributedDataParallel(net, **options)
    if "hook" in how:
        hook = HOOKS[how["hook"]]
        model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # bf16 by its name needs NCCL
    return model


def buckets(model):
    """The names of the parameters in each."""
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    return [[names[parameter] for parameter in bucket.parameters()]
            for bucket in model.reducer._get_zeros_like_grad_buckets()]


def training(rank, folder, how):
    net = NETS[how["net"]]()
    state = torch.load(folder / f"{how['net']}.pt")
    net.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    for buffer in net.buffers():  # others on each rank: it is the options that make them the same
        buffer += rank
    model = wrapped(net, how)
    optimizer = torch.optim.SGD(net.parameters(), lr=how["rate"], momentum=0.9)
    steps, found_buckets = [], []
    for step, uses in enumerate(how["uses"]):
        x = torch.load(folder / f"batch{step}_{rank}")
        loss = getattr(Pass(model, x, uses[rank]), how["pass"])()
        dist.barrier()  # nothing else waits for gradients that are delayed
        steps.append({"loss": loss.item(),
                      "gradients": {name: None if p.grad is None else numbers(p.grad)
                                    for name, p in net.named_parameters(remove_duplicate=False)},
                      "buffers": {name: numbers(buffer) for name, buffer in net.named_buffers()}})
        found_buckets.append(buckets(model))  # none can be asked for before a sparse gradient has been there
        optimizer.step()
        optimizer.zero_grad(set_to_none=not how.get("zeroed"))
    return {"steps": steps, "buckets": [found_buckets[0], found_buckets[-1]], "logged": model._get_ddp_logging_data()}


def train(rank, size, folder, cases, port):
    join(rank, size, port)
    found = [training(rank, folder, how) for how in cases]
    (folder / f"torch{rank}.json").write_text(json.dumps(found))
    end_rank()
