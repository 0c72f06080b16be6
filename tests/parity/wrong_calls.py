"""The wrong calls of collective_parity.py, on torch's side. Every rank refuses them for itself, so that nobody waits for
anybody."""

import torch
import torch.distributed as dist

CALLS = ["short_list", "long_list", "mixed_types", "no_root", "two_roots", "root_out_of_range", "negative_root",
         "group_root_out_of_range", "float_band", "complex_min", "bool_avg", "sparse_max", "wrong_output_size", "bad_splits",
         "expanded", "lists_where_none_belong", "send_to_self", "recv_from_self", "empty_batch", "two_groups_in_batch",
         "group_rank_of_stranger", "group_of_stranger", "destroyed_group", "subgroups_too_large", "few_lists_coalesced",
         "few_tensors_coalesced", "none_coalesced", "mixed_types_coalesced", "wrong_size_coalesced", "scope_of_two_kinds",
         "scope_of_two_types", "scope_of_wrong_size", "gather_group_root_out_of_range", "scatter_negative_group_root",
         "reduce_two_roots", "message_to_two_peers", "batch_to_two_peers", "batch_to_nobody", "subgroups_that_overlap",
         "no_subgroups", "subgroup_of_stranger", "empty_subgroup", "objects_from_two_roots", "objects_from_out_of_range",
         "objects_from_group_out_of_range", "objects_to_two_roots", "scattered_objects_two_roots",
         "scattered_objects_negative_root", "objects_to_self", "objects_from_self", "objects_to_nobody", "no_objects_to_send",
         "no_objects_to_broadcast"]


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

    def few_lists_coalesced(self):
        dist.all_gather_coalesced([[torch.ones(2)]] * (self.size - 1), [torch.ones(2)])

    def few_tensors_coalesced(self):
        dist.all_gather_coalesced([[torch.ones(2)]] * self.size, [torch.ones(2), torch.ones(2)])

    def none_coalesced(self):
        dist.all_gather_coalesced([[]] * self.size, [])

    def mixed_types_coalesced(self):
        dist.all_gather_coalesced([[torch.ones(2, dtype=torch.int32)]] * self.size, [torch.ones(2)])

    def wrong_size_coalesced(self):
        dist.all_gather_coalesced([[torch.ones(5)]] * self.size, [torch.ones(2)])

    def scope_of_two_kinds(self):
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(2))
            gather(torch.ones(2 * self.size), torch.ones(2))

    def scope_of_two_types(self):
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(2))
            dist.all_reduce(torch.ones(2, dtype=torch.int32))

    def scope_of_wrong_size(self):
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with dist._coalescing_manager():
            gather(torch.ones(3 * self.size), torch.ones(2))

    def gather_group_root_out_of_range(self):
        dist.gather(torch.ones(2), None, group_dst=self.size)

    def scatter_negative_group_root(self):
        dist.scatter(torch.ones(2), None, group_src=-1)

    def reduce_two_roots(self):
        dist.reduce(torch.ones(2), dst=0, group_dst=0)

    def message_to_two_peers(self):
        other = (self.rank + 1) % self.size
        dist.isend(torch.ones(2), dst=other, group_dst=other)

    def batch_to_two_peers(self):
        other = (self.rank + 1) % self.size
        dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2), other, group_peer=other)])

    def batch_to_nobody(self):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2))])

    def subgroups_that_overlap(self):
        dist.new_subgroups_by_enumeration([[0, 1], [1, 0]])

    def no_subgroups(self):
        dist.new_subgroups_by_enumeration([])

    def subgroup_of_stranger(self):
        dist.new_subgroups_by_enumeration([[0, self.size]])

    def empty_subgroup(self):
        dist.new_subgroups_by_enumeration([[]])

    def objects_from_two_roots(self):
        dist.broadcast_object_list(["object"], src=0, group_src=0)

    def objects_from_out_of_range(self):
        dist.broadcast_object_list(["object"], src=self.size)

    def objects_from_group_out_of_range(self):
        dist.broadcast_object_list(["object"], group_src=self.size)

    def objects_to_two_roots(self):
        dist.gather_object("object", None, dst=0, group_dst=0)

    def scattered_objects_two_roots(self):
        dist.scatter_object_list([None], None, src=0, group_src=0)

    def scattered_objects_negative_root(self):
        dist.scatter_object_list([None], None, src=-1)

    def objects_to_self(self):
        dist.send_object_list(["object"], dst=self.rank)

    def objects_from_self(self):
        dist.recv_object_list(["object"], src=self.rank)

    def objects_to_nobody(self):
        dist.send_object_list(["object"])

    def no_objects_to_send(self):
        dist.send_object_list([], dst=(self.rank + 1) % self.size)

    def no_objects_to_broadcast(self):
        dist.broadcast_object_list([], src=self.rank)
