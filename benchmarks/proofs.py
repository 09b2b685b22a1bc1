"""What no clock shows: whether a save syncs its files, and whether a load notices damage."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from . import machine
from .contestants import Contestant
from .state import Trained

_CALLS = ("fsync", "fdatasync", "sync_file_range", "syncfs", "sync", "msync")
_CALL = re.compile(rf"\b(?:{'|'.join(_CALLS)})\(")


def save_once(contestant: Contestant, state: Trained) -> dict[str, float]:
    """Save once and sync nothing from outside, for a tracer to watch."""
    contestant.prepare()
    contestant.save(1).wait()
    files = len(machine.files_at(contestant.place(1)))
    contestant.close()
    return {"files": float(files)}


def load_damaged(contestant: Contestant, state: Trained) -> dict[str, bool]:
    """Save, flip one bit in the middle of the largest file, load. Raises: whatever refuses the file."""
    contestant.prepare()
    contestant.save(1).wait()
    contestant.close()
    saved = state.digest()
    flip(max(machine.files_at(contestant.place(1)), key=lambda file: file.stat().st_size))
    state.forget()
    contestant.load(1)
    return {"loaded": True, "same": state.digest() == saved}


def flip(file: Path) -> None:
    """Flip one bit in the middle of a file."""
    with file.open("r+b") as handle:
        handle.seek(file.stat().st_size // 2)
        byte = handle.read(1)[0]
        handle.seek(-1, 1)
        handle.write(bytes([byte ^ 1]))


def tracer(log: Path) -> Sequence[str] | None:
    """The command that counts calls which make files durable, put before another; None where there is no strace."""
    strace = shutil.which("strace")
    return [strace, "-f", "--seccomp-bpf", "-o", str(log), "-e", f"trace={','.join(_CALLS)}"] if strace else None


def calls(log: Path) -> int:
    """Count them in the tracer's log."""
    return len(_CALL.findall(log.read_text()))
