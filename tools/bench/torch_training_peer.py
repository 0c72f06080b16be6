"""torch's side of `lockstep bench ddp`: one rank of DistributedDataParallel on gloo.

    torch_training_peer.py SOCKET RENDEZVOUS RANK SIZE {torch,torch_tuned}

What is said over the socket, and what is timed, is in training_peer.cpp; the models are those of training_models.cpp.
"""

import gc
import math
import os
import socket
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LEARNING_RATE, EXAMPLES = 0.01, 4
BUCKET_CAPS = [1, 4, 16]


class Mlp(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(functional.relu(x) if i else x)
        return x

    def loss(self, output, target):
        return functional.mse_loss(output, target)

    def examples(self, count):
        return torch.randn(count, self.width), torch.randn(count, self.width)


class Classifier(nn.Module):
    def loss(self, output, target):
        return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def convolution(before, after, size, stride):
    return nn.Conv2d(before, after, size, stride=stride, padding=size // 2, bias=False)


class ResidualBlock(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.bn1 = convolution(before, after, 3, stride), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = convolution(after, after, 3, 1), nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(convolution(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(Classifier):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = convolution(3, 64, 7, 2), nn.BatchNorm2d(64)
        self.blocks = nn.ModuleList()
        before = 64
        for after in (64, 128, 256, 512):
            self.blocks.append(ResidualBlock(before, after, 1 if before == after else 2))
            self.blocks.append(ResidualBlock(after, after, 1))
            before = after
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))

    def examples(self, count):
        return torch.randn(count, 3, 64, 64), torch.randint(1000, (count,))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        examples, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(examples, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(examples, length, width))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x))))


class GptSmall(Classifier):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(2048, 256), nn.Embedding(64, 256)
        self.blocks = nn.ModuleList(GptBlock(256, 4) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 2048)

    def forward(self, x):
        x = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def examples(self, count):
        text = torch.randint(2048, (count, 65))
        return text[:, :64].contiguous(), text[:, 1:].contiguous()


def make_net(name):
    if name == "resnet18":
        net = ResNet18()
    elif name == "gpt-small":
        net = GptSmall()
    else:
        net = Mlp(*map(int, name.removeprefix("mlp-").split("x")))
    with torch.no_grad():
        for seed, (key, weights) in enumerate(net.named_parameters(), 1):
            torch.manual_seed(seed)
            if weights.dim() > 1:
                weights.normal_().div_(math.sqrt(weights.numel() / weights.shape[0]))
            else:
                weights.fill_(0 if key.endswith("bias") else 1)
    return net


class Training:
    def __init__(self, model, option, batch, tuned):
        self.net = make_net(model)
        self.accumulates = option == "no_sync"
        searches = option in ("find_unused_parameters", "skip_all_reduce_unused_params")
        # static_graph looks for unused parameters in the first pass only, and is not for no_sync().
        static = option == "static_graph" or (tuned and option != "no_sync" and not searches)
        # Not every torch has these.
        newer = {"skip_all_reduce_unused_params": True, "batched_grad_copy": True, "bucket_cap_mb_list": BUCKET_CAPS}
        self.model = DistributedDataParallel(self.net, find_unused_parameters=searches,
                                             gradient_as_bucket_view=tuned and option != "no_bucket_view",
                                             static_graph=static,
                                             **({option: newer[option]} if option in newer else {}))
        if option.endswith("_compress_hook"):
            hook = getattr(default_hooks, option)
            # That of bf16 is refused by its name where there is no CUDA; gloo reduces what it gives.
            self.model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE)
        self.examples, self.next = [], 0
        for i in range(EXAMPLES):
            torch.manual_seed(1000 * (dist.get_rank() + 1) + i)
            self.examples.append(self.net.examples(int(batch)))

    def backward(self):
        x, target = self.examples[self.next % EXAMPLES]
        self.next += 1
        loss = self.net.loss(self.model(x), target)
        loss.backward()
        return loss.detach()

    def step(self):
        self.optimizer.zero_grad()
        if self.accumulates:
            with self.model.no_sync():
                self.backward()
        loss = self.backward()
        self.optimizer.step()
        return loss

    def digest(self):
        digest = 0
        for parameter in self.net.parameters():
            digest = zlib.crc32(parameter.detach().numpy(), digest)
        return digest


class Peer:
    def __init__(self, tuned):
        self.tuned = tuned
        self.task = self.training = None

    def begin(self, *task):
        self.training = None  # there may be no room for both
        gc.collect()
        self.task, self.training = task, Training(*task, self.tuned)
        return self.training

    def train(self, model, option, batch, steps):
        training = self.begin(model, option, batch)
        losses = [training.step().item() for _ in range(int(steps))]
        size = sum(parameter.nbytes for parameter in training.net.parameters())
        return f"trained {size} {training.digest()} {' '.join(map(repr, losses))}"

    def run(self, model, option, batch, iterations, batches):
        task = (model, option, batch)
        training = self.training if task == self.task else self.begin(*task)
        cpu, times, loss = 0, [], None
        for index in range(-1, int(batches)):
            dist.barrier()
            cpu_start = time.process_time_ns()
            start = time.monotonic_ns()
            for _ in range(int(iterations)):
                loss = training.step()
            end = time.monotonic_ns()
            cpu_end = time.process_time_ns()
            dist.barrier()
            if index >= 0:
                cpu += cpu_end - cpu_start
                times += [start, end]
        most, least = torch.tensor([training.digest()]), torch.tensor([training.digest()])
        dist.all_reduce(most, dist.ReduceOp.MAX)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        verified = math.isfinite(loss.item()) and torch.equal(most, least)
        return f"ran {int(verified)} {cpu} {' '.join(map(str, times))}"


def main():
    path, rendezvous, rank, size, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    stream = link.makefile("rw")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    peer = Peer(tuned=name == "torch_tuned")
    stream.write(f"rank {rank} torch {torch.__version__}\n")
    stream.flush()
    gc.disable()
    for line in stream:
        verb, *words = line.split()
        stream.write({"train": peer.train, "run": peer.run}[verb](*words) + "\n")
        stream.flush()
    os._exit(0)  # the others may be gone: nobody waits for them


if __name__ == "__main__":
    main()
