"""Holdfast makes PyTorch training survive the machine it runs on.

Complete, verified checkpoints, written by a process of their own; exact resume; retention. See `Run`.
Names are imported when they are first used, so that `import holdfast` needs no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from .decide.retention import Keep as Keep
    from .run import Run as Run
    from .settings import Settings as Settings
    from .state.loader import DataLoader as DataLoader

__all__ = ["DataLoader", "Keep", "Run", "Settings", "errors"]

_WHERE = {
    "DataLoader": "holdfast.state.loader",
    "Keep": "holdfast.decide.retention",
    "Run": "holdfast.run",
    "Settings": "holdfast.settings",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("holdfast.errors")
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
