"""Everybody who is compared, by name."""

from collections.abc import Callable
from pathlib import Path

from .contestants import Contestant
from .holdfast_runs import Holdfast
from .state import Trained
from .targets import HOLDFAST, REFERENCE

ASYNC = (
    "DCP async_save (thread)",
    "DCP async_save (process)",
    "torch_checkpointing",
    "torchsnapshot async_take",
)
PEERS = (REFERENCE, "torch.save and rename", "safetensors", "DCP save", "torchsnapshot take", *ASYNC)


def maker(name: str) -> Callable[[Trained, Path], Contestant]:
    """Find the one of that name; only its own libraries are imported."""
    if name == HOLDFAST:
        return Holdfast
    if name.startswith("DCP"):
        from .peers_dcp import MAKERS as DCP

        return DCP[name]
    if name.startswith(("torch_checkpointing", "torchsnapshot")):
        from .peers_packages import MAKERS as PACKAGES

        return PACKAGES[name]
    from .peers_plain import MAKERS as PLAIN

    return PLAIN[name]
