"""The wrong calls of collective_parity.py, on torch's side. Every rank refuses them for itself, so that nobody waits for
anybody."""

import torch
import torch.distributed as dist

CALLS = ["short_list", "long_list", "mixed_types", "no_root", "two_roots", "root_out_of_range", "negative_root",
         "group_root_out_of_range", "float_band", "complex_min", "bool_avg", "sparse_max", "wrong_output_size", "bad_splits",
         "expanded", "lists_where_none_belong", "send_to_self", "recv_from_self", "empty_batch", "two_groups_in_batch",
         "group_rank_of_stranger", "group_of_stranger", "destroyed_group", "subgroups_too_large"]


class WrongCalls:
    """For a rank that has rank, size and groups."""

    def short_list(self):
        dist.all_gather([torch.ones(2)], torch.ones(2))

    def long_list(self):
        dist.reduce_scatter(torch.ones(2), [torch.ones(2)] * (self.size + 1))

    def mixed_types(self):
        dist.all_gather([torch.ones(2, dtype=torch.int32)] * self.size, torch.ones(2))

    def no_root(self):
        dist.broadcast(torch.ones(2))

    def two_roots(self):
        dist.broadcast(torch.ones(2), src=0, group_src=0)

    def root_out_of_range(self):
        dist.broadcast(torch.ones(2), src=self.size)

    def negative_root(self):
        dist.reduce(torch.ones(2), dst=-1)

    def group_root_out_of_range(self):
        dist.broadcast(torch.ones(2), group_src=self.size)

    def float_band(self):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)

    def complex_min(self):
        dist.reduce(torch.ones(2, dtype=torch.complex64), dst=0, op=dist.ReduceOp.MIN)

    def bool_avg(self):
        dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.AVG)

    def sparse_max(self):
        dist.all_reduce(torch.ones(2).to_sparse(), op=dist.ReduceOp.MAX)

    def wrong_output_size(self):
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its newer name
        gather(torch.ones(2 * self.size + 1), torch.ones(2))

    def bad_splits(self):
        dist.all_to_all_single(torch.ones(self.size), torch.ones(self.size), [1] * self.size, [2] * self.size)

    def expanded(self):
        dist.all_reduce(torch.ones(1).expand(4))

    def lists_where_none_belong(self):
        dist.gather(torch.ones(2), [torch.ones(2)] * self.size if self.rank != 0 else None, dst=0)

    def send_to_self(self):
        dist.send(torch.ones(2), dst=self.rank)

    def recv_from_self(self):
        dist.recv(torch.ones(2), src=self.rank)

    def empty_batch(self):
        dist.batch_isend_irecv([])

    def two_groups_in_batch(self):
        other = (self.rank + 1) % self.size
        dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2), other),
                                dist.P2POp(dist.isend, torch.ones(2), other, self.groups["all"])])

    def group_rank_of_stranger(self):
        member = self.rank in (0, self.size - 1)
        dist.get_group_rank(self.groups["pair"] if member else dist.group.WORLD, self.size)

    def group_of_stranger(self):
        dist.new_group([0, self.size])

    def destroyed_group(self):
        group = dist.new_group()
        dist.destroy_process_group(group)
        dist.all_reduce(torch.ones(2), group=group)

    def subgroups_too_large(self):
        dist.new_subgroups(self.size + 1)
