"""A training on a small disk of its own, which fills up, or becomes read-only, and is mended later.

The disk is mounted in a mount namespace that only this process and its children are in, so it goes when they end. What
happened is printed as one JSON line; where no such disk can be made, the line says why.
"""

import argparse
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import holdfast
from holdfast import wiring
from holdfast.engine.checkpoint import committed, open_checkpoint, verify
from holdfast.ledger.store import read
from holdfast.spec.events import to_json

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _RECURSIVE, _PRIVATE = 1, 32, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    """Raise the OSError that a C function left behind."""
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(kind: bytes | None, place: Path, flags: int, options: bytes | None = None) -> None:
    """Call mount(2)."""
    checked(_libc.mount(kind, str(place).encode(), kind, flags, options))


def make_disk(place: Path) -> None:
    """Mount four empty MiB that nobody else sees. Raises: OSError where this user may not."""
    user, group = os.getuid(), os.getgid()
    checked(_libc.unshare(_NEWNS if user == 0 else _NEWNS | _NEWUSER))
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    mount(None, Path("/"), _RECURSIVE | _PRIVATE)
    place.mkdir(parents=True)
    mount(b"tmpfs", place, 0, b"size=4m")


class Disk:
    """The disk, and what is wrong with it."""

    def __init__(self, place: Path, trouble: str) -> None:
        self.place = place
        self.trouble = trouble

    def fail(self) -> None:
        """Begin the trouble, or see to it that it goes on: pruning frees space."""
        if self.trouble == "read-only":
            self.remount(_READ_ONLY)
            return
        with contextlib.suppress(OSError), (self.place / "filler").open("ab", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass

    def mend(self) -> None:
        """End it."""
        if self.trouble == "read-only":
            self.remount(0)
        else:
            (self.place / "filler").unlink()

    def remount(self, flags: int) -> None:
        """Change the mount; a file that is open for writing makes that wait."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return mount(None, self.place, _REMOUNT | flags)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)


def whole(run: Path) -> list[str]:
    """The committed checkpoints, oldest first, every byte of each verified."""
    store = wiring.open_store(run)
    for checkpoint in committed(store):
        for _ in verify(store, wiring.xxh3, open_checkpoint(store, wiring.xxh3, checkpoint), deep=True):
            pass
    return [str(checkpoint) for checkpoint in committed(store)]


class Failures(logging.Handler):
    """Counts the failed saves that the user is told of."""

    told = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the message on, as Holdfast does where nobody has set up logging."""
        self.told += "SAVE FAILED" in record.getMessage()
        print(f"holdfast: {record.getMessage()}", file=sys.stderr, flush=True)


class Training:
    """A small training, a step at a time."""

    def __init__(self, run: holdfast.Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.run = run
        self.model = model
        self.optimizer = optimizer

    def go_on_until(self, condition: Callable[[], object], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Train until something is true."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            meanwhile()
            time.sleep(0.005)
            self.model(torch.ones(64)).sum().backward()
            self.optimizer.step()
            self.run.boundary()


def scenario(
    training: Training, disk: Disk, failures: Failures, args: argparse.Namespace
) -> Iterator[tuple[str, object]]:
    """Train well, in trouble, and well again; say what there was at the end of each."""
    path = disk.place / "run"
    training.go_on_until(lambda: len(whole(path)) >= 2)
    disk.fail()
    training.go_on_until(lambda: failures.told, meanwhile=disk.fail)
    yield "before", whole(path)
    if args.kill_keeper:
        os.kill(training.run._link.pid, signal.SIGKILL)
    several = failures.told + 2
    training.go_on_until(lambda: failures.told >= several, meanwhile=disk.fail)
    yield "during", whole(path)
    if not args.to_the_end:
        disk.mend()
        newest = whole(path)[-1]
        training.go_on_until(lambda: whole(path)[-1] != newest)
    yield "step", training.run.step


def main(args: argparse.Namespace) -> None:
    """Train, with trouble."""
    torch.set_num_threads(1)
    disk = Disk(args.place, args.trouble)
    try:
        make_disk(disk.place)
    except OSError as error:
        print(json.dumps({"skip": f"no disk of its own: {error}"}))
        return
    facts: dict[str, object] = {}
    path = disk.place / "run"
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if args.from_the_start:
        disk.fail()
    failures = Failures()
    logging.getLogger("holdfast").addHandler(failures)
    settings = holdfast.Settings(every_steps=4, finish_s=20)
    try:
        with holdfast.Run(path, state={"model": model, "optimizer": optimizer}, settings=settings) as run:
            for name, fact in scenario(Training(run, model, optimizer), disk, failures, args):
                facts[name] = fact
    finally:
        if args.from_the_start or args.to_the_end:
            disk.mend()
        facts["after"] = whole(path)
        facts["events"] = [to_json(event) for event in read(wiring.open_store(path))]
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("trouble", choices=["full", "read-only"])
    parser.add_argument("--from-the-start", action="store_true")
    parser.add_argument("--to-the-end", action="store_true")
    parser.add_argument("--kill-keeper", action="store_true", help="in the midst of the trouble")
    sys.exit(main(parser.parse_args()))
