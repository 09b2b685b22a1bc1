"""A warm process that has imported torch once and forks a trainer in 20 ms instead of starting one in 3 s.

A forked trainer differs from a fresh interpreter in nothing that these tests look at: it is a process of its own, in a
session of its own, with its own output files, that runs the script as `__main__` and ends as an interpreter ends, but
for taking the modules apart. Torch has only been imported: no threads, no generators used. `fresh=True` executes a
real new interpreter instead.

The zygote is also the subreaper of everything that it starts. Keepers and loader workers whose trainer was killed
become its children, which leaves no zombies and lets a test count who is still alive.
"""

import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_DEADLINE_S = 60.0


@dataclass
class Process:
    """A trainer that was started, by a handle that no other process can inherit its number from."""

    pid: int
    pidfd: int
    stdout: Path
    stderr: Path
    exit_code: int | None = None
    """As `subprocess` has it: negative for a signal; None while unknown."""

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, unless it is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Tell whether it has ended, after waiting at most so long."""
        return bool(select.select([self.pidfd], [], [], timeout_s)[0])

    def until(self, condition: Callable[[], object], look_every_s: float = 0.0003) -> bool:
        """Wait for something to be true; False when the trainer ended before it was."""
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            if self.ended(look_every_s):
                return False
            assert time.monotonic() < deadline, f"nothing happened in {_DEADLINE_S:g} s: {self.said()}"
        return True

    def lines(self) -> list[dict[str, Any]]:
        """The complete lines of its standard output so far."""
        text = self.stdout.read_bytes()
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def said(self) -> str:
        """Its standard error so far."""
        return self.stderr.read_text()


@dataclass
class Zygote:
    """The side of the tests: starts trainers through the warm process."""

    folder: Path
    """Where the output of the trainers goes."""
    preload: Sequence[str] = ("holdfast.run", "holdfast.state.loader", "torch.optim.swa_utils", "torch._dynamo")
    started: list[Process] = field(default_factory=list)

    def __enter__(self) -> "Zygote":
        self.folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.scenario.zygote", str(theirs.fileno()), *self.preload],
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._sock = ours
        self._sock.settimeout(60)
        assert json.loads(self._sock.recv(1 << 16)) == {"ready": True}
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            os.close(process.pidfd)
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._sock.close()
        self._process.wait(30)

    def start(self, script: Path, *words: object, fresh: bool = False) -> Process:
        """Start a script, its output going to files."""
        number = len(self.started) + 1
        stdout, stderr = self.folder / f"{number:05d}.out", self.folder / f"{number:05d}.err"
        stdout.touch()
        stderr.touch()
        argv = [str(script), *map(str, words)]
        request = {"argv": argv, "stdout": str(stdout), "stderr": str(stderr), "fresh": fresh}
        self._sock.send(json.dumps(request).encode())
        pid, pidfd = self._answer()
        self.started.append(Process(pid, pidfd, stdout, stderr))
        return self.started[-1]

    def finish(self, process: Process, deadline_s: float = _DEADLINE_S) -> int:
        """Wait until a trainer has ended; return its exit code."""
        deadline = time.monotonic() + deadline_s
        while process.exit_code is None:
            left = deadline - time.monotonic()
            assert left > 0, f"{process.stderr} still runs after {deadline_s:g} s: {process.said()}"
            if select.select([self._sock], [], [], left)[0]:
                self._hear(json.loads(self._sock.recv(1 << 16)))
        return process.exit_code

    def run(self, script: Path, *words: object, fresh: bool = False, deadline_s: float = _DEADLINE_S) -> Process:
        """Start a script and wait for its end."""
        process = self.start(script, *words, fresh=fresh)
        self.finish(process, deadline_s)
        return process

    def alive(self) -> list[int]:
        """Everything that was started here and still lives: trainers, keepers, loader workers."""
        return _descendants(self._process.pid)

    def _answer(self) -> tuple[int, int]:
        """Wait for the number of the process just started; on the way, hear which ones have ended."""
        while True:
            message, fds, _, _ = socket.recv_fds(self._sock, 1 << 16, 1)
            heard = json.loads(message)
            if "pid" in heard:
                return heard["pid"], fds[0]
            self._hear(heard)

    def _hear(self, heard: dict[str, int]) -> None:
        for process in reversed(self.started):
            if process.pid == heard["ended"] and process.exit_code is None:
                process.exit_code = heard["code"]
                return


def keepers_of(pid: int) -> list[int]:
    """The keepers that a trainer has now; none when it is gone."""
    return [child for child in _children(pid) if b"holdfast.keeper" in _read(f"/proc/{child}/cmdline")]


def command_name(pid: int) -> str:
    """The name that a process has given itself."""
    return _read(f"/proc/{pid}/comm").decode().strip()


def describe(pid: int) -> str:
    """Say what a process is and what it waits for, to find out why it lives."""
    facts = {name: _read(f"/proc/{pid}/{name}").replace(b"\0", b" ").decode().strip() for name in ("cmdline", "wchan")}
    fds = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return f"{pid}: {facts}, {fds}"


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    return found + [below for child in found for below in _descendants(child)]


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return []
    found = [int(word) for task in tasks for word in _read(f"/proc/{pid}/task/{task}/children").split()]
    return [
        child for child in found if _read(f"/proc/{child}/stat").rpartition(b")")[2].split()[:1] not in ([b"Z"], [])
    ]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _serve(sock: socket.socket) -> dict[str, Any]:
    """Start what is asked for until nobody asks any more; returns only in a child, with what it is to run."""
    wake, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_writer)
    sock.send(json.dumps({"ready": True}).encode())
    while True:
        ready = select.select([sock, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 1 << 10)
            _reap(sock)
        if sock in ready:
            asked = b""
            with contextlib.suppress(ConnectionResetError):
                asked = sock.recv(1 << 16)
            if not asked:
                os._exit(0)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where tests run in the background
                for fd in (wake, wake_writer):
                    os.close(fd)
                sock.close()
                request: dict[str, Any] = json.loads(asked)
                return request
            pidfd = os.pidfd_open(pid)
            socket.send_fds(sock, [json.dumps({"pid": pid}).encode()], [pidfd])
            os.close(pidfd)


def _reap(sock: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        sock.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: dict[str, Any]) -> None:
    """Turn this forked child into the trainer: own session, own output, the script as `__main__`."""
    os.setsid()
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(fd, number)
        os.close(fd)
    if request["fresh"]:
        os.execv(sys.executable, [sys.executable, *request["argv"]])
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without taking apart what the zygote imported: half a second for nothing


def _main(fd: int, preload: Sequence[str]) -> None:
    import ctypes
    import gc
    import importlib

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for module in preload:
        importlib.import_module(module)
    gc.freeze()  # a child does not walk, and so copy, what it shares with this process
    assert len(os.listdir("/proc/self/task")) == 1, "a zygote with threads cannot be forked safely"
    _become(_serve(socket.socket(fileno=fd)))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
