"""Loads the extension, or says in one sentence why it cannot be."""

import importlib

import torch


def extension():
    try:
        module = importlib.import_module("lockstep_torch._C")
    except ImportError as error:
        raise ImportError(f"lockstep-torch cannot be loaded with torch {torch.__version__}: {error}. "
                          "It works with the torch that it was built for: install it again.") from error
    if module.built_for_torch != torch.__version__.split("+")[0]:
        raise ImportError(f"lockstep-torch was built for torch {module.built_for_torch}, and this is torch "
                          f"{torch.__version__}: install it again.")
    return module
