"""The calls of collective_parity.py that are several in one, on torch's side: coalesced, batched, by tag, in a coalescing
scope, in groups that are made on the way."""

import datetime
import re
import warnings

import torch
import torch.distributed as dist

# Deprecated in the newest torch, and what we compare with.
warnings.simplefilter("ignore", FutureWarning)

# By their newer names where torch has them.
ALL_GATHER_SINGLE = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER_SINGLE = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

REDUCING = ["scope_all_reduce", "scope_reduce_scatter_single"]
MOVING = ["all_gather_coalesced", "batch", "tags", "scope_all_gather_single"]
ONCE = ["monitored_barrier", "subgroups_by_enumeration"]
MISSING_WAIT = datetime.timedelta(milliseconds=100)


class ComposedCalls:
    """For a rank that has make(part, sizes), empty(sizes), sizes, n, own, members, number, op, group and as_group_rank."""

    def longer(self):
        return [*self.sizes, 2]

    def whole(self, sizes):
        return [self.n * sizes[0], *sizes[1:]]

    def own_part(self, whole):
        rows = whole.shape[0] // self.n
        return whole[self.own * rows:(self.own + 1) * rows]

    def all_gather_coalesced(self):
        outputs = [[self.empty(), self.empty(self.longer())] for _ in range(self.n)]
        dist.all_gather_coalesced(outputs, [self.make(0), self.make(1, self.longer())], group=self.group)
        return [tensor for pair in outputs for tensor in pair]

    def neighbours(self):
        """The ranks to send to and to receive from, and what their arguments are called."""
        to, source = (self.own + 1) % self.n, (self.own - 1) % self.n
        if self.as_group_rank:
            return to, source, "group_"
        return self.members[to], self.members[source], ""

    def batch(self):
        to, source, form = self.neighbours()
        outputs = [self.empty(), self.empty(self.longer())]

        def op(which, tensor, peer):
            return dist.P2POp(which, tensor, group=self.group, **{f"{form}peer": peer})

        for work in dist.batch_isend_irecv([op(dist.isend, self.make(0), to), op(dist.irecv, outputs[0], source),
                                            op(dist.isend, self.make(1, self.longer()), to),
                                            op(dist.irecv, outputs[1], source)]):
            work.wait()
        return outputs

    def tags(self):
        to, source, form = self.neighbours()
        outputs = [self.empty(), self.empty()]
        sends = [dist.isend(self.make(i), group=self.group, tag=2 * self.number + i, **{f"{form}dst": to}) for i in (0, 1)]
        receives = [dist.irecv(outputs[i], group=self.group, tag=2 * self.number + i, **{f"{form}src": source})
                    for i in (1, 0)]
        for work in sends + receives:
            work.wait()
        return outputs

    def scope(self):
        return dist._coalescing_manager(group=self.group)  # torch has no other name for it

    def scope_all_reduce(self):
        tensors = [self.make(0), self.make(1, self.longer())]
        with self.scope():
            for tensor in tensors:
                dist.all_reduce(tensor, op=self.op, group=self.group)
        return tensors

    def scope_all_gather_single(self):
        outputs = [self.empty(self.whole(self.sizes)), self.empty(self.whole(self.longer()))]
        own = self.own_part(outputs[1])
        own.copy_(self.make(1, self.longer()))
        with self.scope():
            ALL_GATHER_SINGLE(outputs[0], self.make(0), group=self.group)
            ALL_GATHER_SINGLE(outputs[1], own, group=self.group)
        return outputs

    def scope_reduce_scatter_single(self):
        output = self.empty()
        whole = self.make(1, self.whole(self.longer()))
        own = self.own_part(whole)
        with self.scope():
            REDUCE_SCATTER_SINGLE(output, self.make(0, self.whole(self.sizes)), op=self.op, group=self.group)
            REDUCE_SCATTER_SINGLE(own, whole, op=self.op, group=self.group)
        return [output, own]

    def monitored_barrier(self):
        dist.monitored_barrier(group=self.group)
        return []

    def missing_at_barrier(self):
        """Rank 0 comes alone, and says who is missing."""
        group = dist.new_group()
        if self.rank != 0:
            return []
        try:
            dist.monitored_barrier(group, timeout=MISSING_WAIT, wait_all_ranks=True)
        except RuntimeError as error:
            named = re.search(r"Ranks ([\d, ]+) failed to pass", str(error))
            return [torch.tensor([int(rank) for rank in named.group(1).split(",")])]
        return []

    def subgroups_by_enumeration(self):
        """The first and the last rank, and the others."""
        lists = [[0, self.n - 1], list(range(1, self.n - 1))]
        group, groups = dist.new_subgroups_by_enumeration([ranks for ranks in lists if ranks])
        tensor = self.make(0)
        dist.all_reduce(tensor, group=group)
        return [tensor, torch.tensor(dist.get_process_group_ranks(group)), torch.tensor(len(groups))]
