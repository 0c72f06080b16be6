"""The trainings of parity.py: by what they show, each what is not as usual."""

from parity_training import DELAYED, IGNORED, UNTIL

SMALL = {"bucket_cap_mb": 0.001}
SEARCHED = {"find_unused_parameters": True, **SMALL}
STATIC = {"static_graph": True, **SMALL}
HELD = {"rate": 0}  # weights stay as they are: what differs in one step does not add up
DRIFTS = {"drifts": True, **HELD}  # torch's ranks have gradients of their own: those of all of them are what ours have
FP16, BF16 = {"bits": "float16", **HELD}, {"bits": "bfloat16", **HELD}


def always(c, d):
    return lambda step, rank: (c, d)


def sometimes(step, rank):
    """Every third step some ranks leave d out, and then all of them both."""
    return [(True, rank % 2 == 1), (False, False), (True, True)][step % 3]


def of_the_first_rank(step, rank):
    """From the second step on; and every other time nobody has them."""
    return (True, True) if step == 0 else (rank == 0 and step % 2 == 1,) * 2


USUAL = {"net": "net", "pass": "plain", "rate": 0.1, "uses": always(True, True)}
TRAININGS = {
    "every parameter is used": {},
    "small buckets": SMALL,
    "no views of buckets": {"gradient_as_bucket_view": False, "bucket_cap_mb": 0.002},
    "sizes of buckets": {"bucket_cap_mb_list": [0.0002, 0.002, 0.001]},
    "sizes of buckets, from the start": {"bucket_cap_mb_list": [0.0002, 0.002, 0.001], "find_unused_parameters": True},
    "unused parameters": {"uses": sometimes, **SEARCHED},
    "unused parameters that are zeroed": {"uses": sometimes, "zeroed": True, **SEARCHED},
    "unused and skipped": {"uses": always(False, False), "skip_all_reduce_unused_params": True, **SEARCHED},
    "static, with an unused layer": {"uses": always(True, False), "static_graph": True},
    "static, unused and skipped": {"uses": always(False, False), "skip_all_reduce_unused_params": True, **STATIC},
    "copied with their bucket": {"batched_grad_copy": True, **SMALL},
    "copied with their bucket, no views": {"batched_grad_copy": True, "gradient_as_bucket_view": False},
    "zeroed": {"zeroed": True, **SMALL},
    "buffers shared at the start": {"forward_sync_buffers": False},
    "buffers never shared": {"broadcast_buffers": False},
    "the older option is ignored": {"broadcast_buffers": False, "forward_sync_buffers": True},
    "delayed": {DELAYED: ["c.weight", "d.weight", "d.bias"], UNTIL: "a.weight", **SMALL},

    "sparse": {"net": "sparse"},
    "sparse, small buckets": {"net": "sparse", **SMALL},
    "sparse, no views": {"net": "sparse", "gradient_as_bucket_view": False, **SMALL},
    "sparse, looked for": {"net": "sparse", **SEARCHED},
    "sparse, unused": {"net": "sparse", "uses": of_the_first_rank, "zeroed": True, **SEARCHED},
    "sparse, static": {"net": "sparse", **STATIC},
    "sparse, through a hook": {"net": "sparse", "hook": "all_reduce", **SMALL},
    "four types": {"net": "mixed", **HELD},
    "four types, small buckets": {"net": "mixed", **SMALL, **HELD},
    "four types, sizes of buckets": {"net": "mixed", "bucket_cap_mb_list": [0.0002, 0.002], **HELD},
    "four types, looked for": {"net": "mixed", "uses": sometimes, **SEARCHED, **HELD},
    "four types, static": {"net": "mixed", "uses": always(False, True), **STATIC, **HELD},
    "four types, no views": {"net": "mixed", "gradient_as_bucket_view": False, **SMALL, **HELD},
    "four types in 16 bits": {"net": "mixed", "hook": "bf16", **SMALL, **BF16},
    "odd parameters": {"net": "odd"},
    "odd parameters, small buckets": {"net": "odd", **SMALL},
    "odd parameters, no views": {"net": "odd", "gradient_as_bucket_view": False, **SMALL},
    "odd parameters, looked for": {"net": "odd", **SEARCHED},
    "odd parameters, static": {"net": "odd", "zeroed": True, **STATIC},
    "a rank's own": {"net": "odd", IGNORED: ["own.weight", "seen"], **SMALL},

    "all_reduce": {"hook": "all_reduce", **SMALL},
    "all_reduce, unused parameters": {"hook": "all_reduce", "uses": sometimes, **SEARCHED},
    "fp16": {"hook": "fp16", **SMALL, **FP16},
    "fp16 around all_reduce": {"hook": "fp16 around all_reduce", **SMALL, **FP16},
    "bf16": {"hook": "bf16", **SMALL, **BF16},
    "bf16 around all_reduce": {"hook": "bf16 around all_reduce", "gradient_as_bucket_view": False, **BF16},
    "noop": {"hook": "noop", **SMALL},

    "accumulated": {"pass": "accumulated"},
    "accumulated, no views": {"pass": "accumulated", "gradient_as_bucket_view": False, **SMALL},
    "two forwards": {"pass": "two_forwards", **SMALL},
    "two forwards, looked for": {"pass": "two_forwards", **SEARCHED},
    "two forwards, static": {"pass": "two_forwards", **STATIC},
    "two backwards": {"pass": "two_backwards", **SMALL, **DRIFTS},
    "retained": {"pass": "retained", **SMALL, **DRIFTS},
    "a forward in vain": {"pass": "forward_in_vain", **SMALL},
    "evaluated between": {"pass": "evaluated_between", **SMALL},
    "checkpoints": {"net": "checkpoints", **SMALL},
    "checkpoints, unused parameters": {"net": "checkpoints", "uses": sometimes, **SEARCHED},
    "checkpoints, static": {"net": "checkpoints", "uses": always(True, False), **STATIC},
    "reentrant checkpoints": {"net": "reentrant", "uses": always(False, True), **SMALL},
    "reentrant checkpoints, static": {"net": "reentrant", **STATIC},
    "reentrant checkpoints, static and unused": {"net": "reentrant", "uses": always(True, False), **STATIC},
    "reentrant checkpoints, two forwards": {"net": "reentrant", "pass": "two_forwards", **STATIC},
}

LARGE = {
    "by default": {"net": "wide", "steps": 3},
    "by default, from the start": {"net": "wide", "steps": 2, "find_unused_parameters": True},
    "25 MiB, the first too": {"net": "wide", "steps": 3, "bucket_cap_mb": 25},
}


def first_of_each_kind(trainings):
    kinds = ("net", "hook", "pass", "find_unused_parameters", "static_graph")
    found = {}
    for name, how in trainings.items():
        found.setdefault(tuple(how.get(key) for key in kinds), (name, how))
    return dict(found.values())
