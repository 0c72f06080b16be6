"""The object collectives of collective_parity.py, on torch's side. An object is a text, a list of numbers and a tensor."""

import torch
import torch.distributed as dist

CALLS = ["all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "pass_object_list"]


def contents(objects):
    tensors = []
    for name, numbers, tensor in objects:
        tensors += [torch.tensor(list(map(ord, name))), torch.tensor(numbers), tensor]
    return tensors


class ObjectCalls:
    """For a rank that has make(part), n, own, rank, members, root, src, dst, group and neighbours()."""

    def parcel(self, part):
        return f"of {self.own}", [self.own - i for i in range(part + 1)], self.make(part)

    def parcels(self, count):
        return [self.parcel(part) for part in range(count)]

    def all_gather_object(self):
        objects = [None] * self.n
        dist.all_gather_object(objects, self.parcel(0), group=self.group)
        return contents(objects)

    def gather_object(self):
        objects = [None] * self.n if self.rank == self.root else None
        dist.gather_object(self.parcel(0), objects, group=self.group, **self.dst)
        return contents(objects or [])

    def broadcast_object_list(self):
        objects = self.parcels(2)
        dist.broadcast_object_list(objects, group=self.group, **self.src)
        return contents(objects)

    def scatter_object_list(self):
        output = [None]
        objects = self.parcels(self.n) if self.rank == self.root else None
        dist.scatter_object_list(output, objects, group=self.group, **self.src)
        return contents(output)

    def pass_object_list(self):
        """Around the ring, from rank 0 to itself."""
        to, source, form = self.neighbours()
        objects = [None, None]
        if self.own == 0:
            dist.send_object_list(self.parcels(2), group=self.group, **{f"{form}dst": to})
        sender = dist.recv_object_list(objects, group=self.group, **{f"{form}src": source})
        if self.own != 0:
            dist.send_object_list(self.parcels(2), group=self.group, **{f"{form}dst": to})
        return contents(objects) + [torch.tensor(sender)]
