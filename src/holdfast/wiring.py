"""The only module that chooses implementations: URL to Store, this machine's processes, the ledger."""

import os
import re
import time
from pathlib import Path

from .errors import UsageError
from .launchers.local import KeeperProcess, LocalProcesses, parent_lives
from .ledger.store import StoreLedger
from .ranks.single import SingleRank
from .spec.ports import Ledger, Ranks, Store
from .storage.digest import xxh3
from .storage.local import LocalStore
from .storage.retrying import Retrying

__all__ = [
    "KeeperProcess",
    "LocalProcesses",
    "open_ledger",
    "open_ranks",
    "open_store",
    "parent_lives",
    "xxh3",
]

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def open_store(url: str | os.PathLike[str]) -> Store:
    """Choose the store for a URL or path. Raises: UsageError for a URL that no store serves."""
    text = os.fspath(url)
    if not text:
        raise UsageError("the store's path is empty; give a folder, like runs/digits")
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    elif _SCHEME.match(text):
        raise UsageError(f"{text}: this Holdfast stores in folders; give a plain path, like runs/digits")
    return Retrying(LocalStore(Path(text).expanduser().absolute()), time)


def open_ranks() -> Ranks:
    """Choose who commits together."""
    return SingleRank()


def open_ledger(store: Store, attempt: int) -> Ledger:
    """Choose where events go."""
    return StoreLedger(store, attempt)
