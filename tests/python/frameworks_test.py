"""PyTorch Lightning, Hugging Face accelerate and torch.compile on the backend: each gets what it gets on gloo."""

import datetime
import logging
import os
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
import accelerate  # noqa: E402
import pytorch_lightning  # noqa: E402
from pytorch_lightning.strategies import DDPStrategy  # noqa: E402

import worlds  # noqa: E402
from worlds import World, free_port  # noqa: E402

worlds.PATIENCE = datetime.timedelta(seconds=400)  # inductor runs a compiler


def data():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def as_torchrun(rank, size, port):
    """The variables that torchrun sets; the ranks are here already."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                      GROUP_RANK="0", TORCHELASTIC_RUN_ID="job", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      OMP_NUM_THREADS="1")


class Net(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning(rank, size, folder, backend, port):
    as_torchrun(rank, size, port)
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", devices=size, strategy=DDPStrategy(process_group_backend=backend), max_epochs=2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder)
    net = Net()
    trainer.fit(net, torch.utils.data.DataLoader(data(), batch_size=8))
    return dist.get_backend(), net.layer.weight.detach().clone(), trainer.callback_metrics["loss"].item()


def accelerated(rank, size, folder, backend, port):
    as_torchrun(rank, size, port)
    dist.init_process_group(backend)  # on a CPU accelerate takes gloo, unless there is a group already
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(5)
    net = torch.nn.Linear(4, 1)
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1),
                                                 torch.utils.data.DataLoader(data(), batch_size=8))
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(net(x), y))
        optimizer.step()
    gathered = accelerator.gather(torch.tensor([float(rank)])).tolist()
    assert gathered == list(range(size)), gathered
    return dist.get_backend(), accelerator.unwrap_model(net).weight.detach().clone(), accelerator.num_processes


def compiled(rank, size, folder, backend, port):
    """Functional collectives inside a graph that inductor compiles."""
    dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=size)

    @torch.compile(fullgraph=True)
    def step(x):
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        everything = functional.all_gather_tensor(total, 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor(everything.sin(), "sum", 0, dist.group.WORLD) + 1

    return dist.get_backend(), step(torch.full((4,), rank + 1.0)), 0


class FrameworksTest(unittest.TestCase):
    def does_as_on_gloo(self, program):
        with tempfile.TemporaryDirectory() as folder:
            gloo, ours = (World(2, joins=False).run(program, folder, backend, free_port())
                          for backend in ("gloo", "lockstep"))
        for (name, weight, figure), (_, expected, their_figure) in zip(ours, gloo):
            self.assertEqual(name, "lockstep")
            self.assertTrue(weight.equal(expected))
            self.assertEqual(figure, their_figure)

    def test_lightnings_ddp_strategy(self):
        self.does_as_on_gloo(lightning)

    def test_accelerate(self):
        self.does_as_on_gloo(accelerated)

    def test_functional_collectives_in_a_compiled_graph(self):
        self.does_as_on_gloo(compiled)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
