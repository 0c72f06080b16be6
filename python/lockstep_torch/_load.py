"""Loads the extension, or says in one sentence why it cannot be."""

import importlib
import importlib.metadata

import torch


def _identity(version):
    """What two builds of torch must share. Of a release, what follows the + is for which devices it was built."""
    public = version.partition("+")[0]
    return public if public.replace(".", "").isdecimal() else version


def _built_for():
    """The version of torch that the package says it needs: one whose extension is not loaded does not say it itself."""
    try:
        needs = importlib.metadata.requires("lockstep-torch") or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    of_torch = [need.partition("==")[2].strip(" )") for need in needs if need.startswith("torch ")]
    return f"the torch that it was built for, {of_torch[0]}" if of_torch else "the torch that it was built for"


def extension():
    try:
        module = importlib.import_module("lockstep_torch._C")
    except ImportError as error:
        raise ImportError(f"lockstep-torch cannot be loaded with torch {torch.__version__}: {error}. "
                          f"It works with {_built_for()}: install it again.") from error
    if _identity(module.built_for_torch) != _identity(torch.__version__):
        raise ImportError(f"lockstep-torch was built for torch {module.built_for_torch}, and this is torch "
                          f"{torch.__version__}: install it again.")
    return module
