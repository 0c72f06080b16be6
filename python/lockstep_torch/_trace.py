"""The last operations of this process as torch's flight recorder writes them."""

import pickle

import torch

VERSION = "2.10"  # of the format
# torch's analyzer knows operations by names of its own, behind the name of a backend that it knows. That of 2.11 knows
# NCCL's names alone; by the last two it takes any sizes, if they are the same on all ranks.
NAMES = {"sparse_all_reduce": "all_reduce", "recvAnySource": "recv", "monitored_barrier": "barrier"}
BACKEND, UNEVEN_GATHER, UNEVEN_SCATTER = "gloo", "all_gather_v", "reduce_scatter_v"
if torch.torch_version.TorchVersion(torch.__version__) < (2, 13):
    NAMES["barrier"] = NAMES["monitored_barrier"] = "all_reduce_barrier"
    BACKEND, UNEVEN_GATHER, UNEVEN_SCATTER = "nccl", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced"


def _as_one(sizes, parts, wholes):
    """Lists of tensors that are parts of one, as that one: the analyzer counts the elements of the first."""
    if wholes == 0 or len(sizes) != parts * wholes:
        return sizes
    lists = [sizes[i:i + parts] for i in range(0, len(sizes), parts)]
    return [[parts, *one[0]] for one in lists] if all(part == one[0] for one in lists for part in one) else sizes


def _entry(note):
    name = NAMES.get(note["name"], note["name"])
    inputs, outputs, size = note["input_sizes"], note["output_sizes"], len(note["ranks"])
    if name == "all_gather":
        outputs = _as_one(outputs, size, len(inputs))
        if len(outputs) != len(inputs):  # the analyzer wants the same sizes from all ranks
            name, inputs = UNEVEN_GATHER, outputs
    elif name == "reduce_scatter":
        inputs = _as_one(inputs, size, len(outputs))
        if len(outputs) != len(inputs):
            name, outputs = UNEVEN_SCATTER, inputs
    message = name in ("send", "recv")
    if message:
        name = f"{name} {note['rank']}{'->' if name == 'send' else '<-'}{note['peer']}"
    return {"record_id": note["record_id"], "pg_id": 0, "process_group": (note["group"], note["description"]),
            "collective_seq_id": 0 if message else note["sequence"], "p2p_seq_id": note["sequence"] if message else 0,
            "op_id": note["sequence"], "profiling_name": f"{BACKEND}:{name}", "time_created_ns": note["started_ns"],
            "input_sizes": inputs, "input_dtypes": note["input_dtypes"], "output_sizes": outputs,
            "output_dtypes": note["output_dtypes"], "state": "completed" if note["completed"] else "started",
            "time_discovered_started_ns": note["started_ns"],
            "time_discovered_completed_ns": note["ended_ns"] if note["ended"] else None,
            "duration_ms": (note["ended_ns"] - note["started_ns"]) / 1e6 if note["ended"] else None,
            "retired": note["ended"], "timeout_ms": note["timeout_ms"], "is_p2p": message, "frames": []}


def pickled(notes, version):
    entries = [_entry(note) for note in notes]
    groups = {note["group"]: {"name": note["group"], "desc": note["description"], "ranks": str(note["ranks"])}
              for note in notes}
    last = {}
    for note in notes:
        status = last.setdefault(note["group"], {"last_enqueued_collective": 0, "last_started_collective": 0,
                                                 "last_completed_collective": 0})
        status["last_enqueued_collective"] = status["last_started_collective"] = note["sequence"]
        if note["completed"]:
            status["last_completed_collective"] = note["sequence"]
    return pickle.dumps({"version": VERSION, "comm_lib_version": f"lockstep {version}", "pg_config": groups,
                         "pg_status": last, "entries": entries}, protocol=2)
