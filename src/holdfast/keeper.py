"""The keeper process: `python -m holdfast.keeper FD PARENT`. No torch; ready before the trainer has restored.

It ends by itself when its trainer has finished, or is gone and everything staged is written.
"""

import os
import signal
import socket
import sys
import time
from typing import Any

from . import wiring
from .decide.retention import Keep
from .engine.channel import Channel, ChannelClosed
from .engine.keep import Duty, Keeper, Ports

_FIRST_MESSAGE_S = 60.0


def main(fd: int, parent: int) -> int:
    """Serve one trainer until the end; returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever stops the trainer must not stop the last save
    channel = Channel(socket.socket(fileno=fd))
    try:
        message = _first(channel)
    except ChannelClosed:
        return 0
    attempt = message["attempt"]
    store = wiring.open_store(message["url"])
    ports = Ports(
        store=store,
        digest=wiring.xxh3,
        ranks=wiring.open_ranks(),
        ledger=wiring.open_ledger(store, attempt),
        clock=time,
        trainer_alive=lambda: wiring.parent_lives(parent),
    )
    duty = Duty(
        attempt=attempt,
        number=message["number"],
        pid=os.getpid(),
        keep=Keep(**message["keep"]),
    )
    Keeper(ports, duty, channel).run()
    return 0


def _first(channel: Channel) -> dict[str, Any]:
    """Wait for the message that says what to do; it is always the first one."""
    deadline = time.monotonic() + _FIRST_MESSAGE_S
    while time.monotonic() < deadline:
        for message, _ in channel.receive(0.5, most=1):
            return message
    raise SystemExit(f"no word from the trainer in {_FIRST_MESSAGE_S:g} s")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
