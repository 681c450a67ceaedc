"""How an adapter takes one file of a public package without the rest of the package.

PUBLIC_KERNELS is the folder with the unpacked wheels, and with the checkouts, each under the name
of its repository.
"""

import contextlib
import importlib
import os
import sys
import types
from pathlib import Path

import torch

FOLDER = Path(os.environ.get("PUBLIC_KERNELS", "."))


def load(name, checkout=""):
    """The module `name` of a wheel, or of a checkout. No `__init__` above it is executed."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        if package not in sys.modules:
            stub(package)
        # Found before anything that is installed under the same name.
        sys.modules[package].__path__ = [str(FOLDER.joinpath(checkout, *parts[:count]))]
    return importlib.import_module(name)


def stub(name, **members):
    """Put a module with these members in place of the one that the package has."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(members)
    return module


class Torch(types.ModuleType):
    """torch, for a file whose host code asks a GPU: its context does nothing on a CPU."""

    def __init__(self):
        super().__init__("torch")
        self.cuda = torch.cuda
        if not torch.cuda.is_available():
            self.cuda = types.SimpleNamespace(
                device=lambda device: contextlib.nullcontext(),
                current_device=lambda: 0,
                is_available=lambda: False,
                get_device_properties=lambda device: types.SimpleNamespace(multi_processor_count=8),
            )

    def __getattr__(self, name):
        return getattr(torch, name)
