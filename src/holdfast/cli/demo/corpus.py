"""What the demo learns: the source text of the standard library of the interpreter that runs it."""

import os
import sysconfig
from pathlib import Path

from ...errors import HoldfastError

CAP_BYTES = 4 << 20
"""So much text is plenty for a run of a minute, and is read in a moment at every restart."""

LEAST_BYTES = 64 << 10
"""Less than this is no corpus: some distributions ship a library without its source text."""

_SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data"}
)
"""Other people's code, tests, and modules that are mostly tables."""


def standard_library(folder: Path | None = None, cap_bytes: int = CAP_BYTES) -> bytes:
    """Read the `.py` files of the standard library, in the order of their paths, up to `cap_bytes`.

    The same interpreter gives the same bytes every time.

    Raises: HoldfastError when there is hardly any source text.
    """
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sources(root):
        text += path.read_bytes()
        if len(text) >= cap_bytes:
            break
    if len(text) < LEAST_BYTES:
        raise HoldfastError(
            f"{root} holds only {len(text)} bytes of Python source text; the demo learns from the standard library's "
            "source, so run it with a Python that ships it"
        )
    return bytes(text[:cap_bytes])


def sources(root: Path) -> list[Path]:
    """List the source files below `root` that are worth learning, sorted by relative path on every file system."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())
