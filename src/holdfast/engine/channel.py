"""Framed JSON messages, with file descriptors, between a trainer and its keeper.

A frame is a 4-byte little-endian length and that many bytes of JSON. Descriptors travel with the first bytes of the
frame whose `fds` says how many there are.
"""

import json
import select
import socket
import threading
from collections import deque
from typing import Any

MAX_DESCRIPTORS = 4
_READ_BYTES = 1 << 16


class ChannelClosed(Exception):
    """The other process is gone. Everything that had arrived was delivered first."""


class Channel:
    """One end of a Unix stream socket. Sending is safe from several threads; receiving belongs to one."""

    def __init__(self, sock: socket.socket, send_deadline_s: float = 30.0) -> None:
        self._sock = sock
        self._sock.settimeout(send_deadline_s)
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._ended = False
        self._cut = False
        """A message was sent in part: whatever followed would be taken for the rest of it."""

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send one message. Raises: ChannelClosed, also when the other side takes nothing for the deadline."""
        text = json.dumps({**message, "fds": len(fds)}, allow_nan=False).encode()
        frame = len(text).to_bytes(4, "little") + text
        with self._sending:
            if self._cut:
                raise ChannelClosed("an earlier message could not be sent whole")
            try:
                sent = socket.send_fds(self._sock, [frame], fds) if fds else 0
                self._sock.sendall(memoryview(frame)[sent:])
            except OSError as error:
                self._cut = True
                raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float, most: int | None = None) -> list[tuple[dict[str, Any], list[int]]]:
        """Return what has arrived as (message, descriptors), after waiting at most `timeout_s` for the first bytes.

        With `most`, later messages stay for the next call.

        Raises: ChannelClosed once the other side is gone, or took a message only in part, and everything was delivered.
        """
        if left_over := self._frames(most):
            return left_over
        timeout_ms = 0 if self._cut else max(0, round(timeout_s * 1000))
        while not self._ended and self._poll.poll(timeout_ms):
            timeout_ms = 0
            self._read()
        messages = self._frames(most)
        if (self._ended or self._cut) and not messages:
            raise ChannelClosed("the other process closed its end")
        return messages

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, MAX_DESCRIPTORS)
        except OSError:
            data, fds = b"", []
        self._descriptors.extend(fds)
        self._received += data
        self._ended = not data

    def _frames(self, most: int | None) -> list[tuple[dict[str, Any], list[int]]]:
        messages: list[tuple[dict[str, Any], list[int]]] = []
        while len(self._received) >= 4 and len(messages) != most:
            end = 4 + int.from_bytes(self._received[:4], "little")
            if len(self._received) < end:
                break
            message = json.loads(self._received[4:end])
            del self._received[:end]
            fds = [self._descriptors.popleft() for _ in range(message.pop("fds"))]
            messages.append((message, fds))
        return messages
