"""What torch runs when it is imported: makes the backend "lockstep" and the scheme lockstep:// known to it.

An entry point that raises breaks `import torch`, and one that imports much slows it down: so this module imports nothing
of the package. The library is loaded when the first group is made.
"""

import atexit
import sys


def _create(dist_backend_opts, pg_options):
    import lockstep_torch
    return lockstep_torch._create(dist_backend_opts, pg_options)


def _rendezvous(url, **options):
    import lockstep_torch
    return lockstep_torch._rendezvous(url, **options)


def _leave():
    package = sys.modules.get("lockstep_torch")
    if hasattr(package, "_C"):
        package._C.leave_all()


def register():
    """Called by torch, and by `import lockstep_torch`. Never raises: what goes wrong is a warning."""
    try:
        import torch.distributed
        if not torch.distributed.is_available() or "LOCKSTEP" in torch.distributed.Backend._plugins:
            return
        atexit.register(_leave)  # now: what the program registers later to be done at exit is done before
        # As gloo; CUDA tensors are refused, but by us, who say what to do.
        torch.distributed.Backend.register_backend("lockstep", _create, extended_api=True, devices=["cpu", "cuda"])
        torch.distributed.register_rendezvous_handler("lockstep", _rendezvous)
    except Exception as error:
        import warnings
        said = f"lockstep-torch could not make itself known to torch: {error}"
        try:
            warnings.warn(said, stacklevel=2)
        except Exception:  # with python -W error
            print(said, file=sys.stderr)
