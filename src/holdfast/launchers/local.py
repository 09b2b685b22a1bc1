"""Processes of this machine: start a keeper, recognise a process again, tell whether it lives.

A process is known by boot, process-id namespace, process id and start time together (proc(5)): a process id alone is
reused, and means something else in another container or after a reboot.
"""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

_LAST_WORDS_BYTES = 2000


class LocalProcesses:
    """The `Processes` port: which processes of this machine live."""

    def describe(self, pid: int) -> dict[str, Any]:
        """Describe a living process so that anybody can recognise it later."""
        return {
            "host": socket.gethostname(),
            "boot": _boot_id(),
            "pid_namespace": _pid_namespace(),
            "pid": pid,
            "started": _start_time(pid),
            "command": _command(pid),
        }

    def alive(self, holder: Mapping[str, Any]) -> bool | None:
        """Tell whether a described process lives; None when it ran on another machine or in another container."""
        if holder.get("boot") != _boot_id():
            return False if holder.get("host") == socket.gethostname() else None
        if holder.get("pid_namespace") != _pid_namespace():
            return None
        pid = holder.get("pid")
        started = _start_time(pid) if isinstance(pid, int) else None  # a damaged description describes nobody
        return started is not None and started == holder.get("started")


class KeeperProcess:
    """The `Child` port: a keeper in a session of its own, so that a signal to the trainer's group does not reach it."""

    def __init__(self, sock: socket.socket) -> None:
        """Start `python -m holdfast.keeper` on its end of the socket."""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the keeper
        # Above the standard streams: where those are closed, the socket may have got one of their numbers.
        fd = fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD, 3)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.keeper", str(fd), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=[fd],
                start_new_session=True,
                # The keeper finds what the trainer finds, and nothing in the folder that it happens to start in.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"},
            )
        finally:
            os.close(fd)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Tell how it ended; None while it lives."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Like `poll`, after waiting at most `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def close(self) -> None:
        """Let go of its standard error; the process goes on if it still lives."""
        self._stderr.close()

    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _LAST_WORDS_BYTES))
        text = self._stderr.read().decode(errors="replace").strip()
        return f"; it said:\n{text}\n" if text else ""


def parent_lives(pid: int) -> bool:
    """Tell whether the parent that started this process is still `pid`: an orphan is given to another parent."""
    return os.getppid() == pid


def _start_time(pid: int) -> int | None:
    """Start time in clock ticks since boot (field 22 of /proc/<pid>/stat); None for the dead and for zombies."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return "?"
    return b" ".join(words).decode(errors="replace").strip()[:200]


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
