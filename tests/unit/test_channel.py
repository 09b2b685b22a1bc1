"""Framed messages with descriptors between two processes."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.engine.channel import Channel, ChannelClosed

DEADLINE_S = 5.0


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """Two connected ends."""
    a, b = socket.socketpair()
    ours, theirs = Channel(a), Channel(b)
    yield ours, theirs
    ours.close()
    theirs.close()


def received(channel: Channel, count: int) -> list[tuple[dict[str, Any], list[int]]]:
    """Receive until so many messages are there."""
    found: list[tuple[dict[str, Any], list[int]]] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        found += channel.receive(DEADLINE_S)
        assert time.monotonic() < deadline, f"only {len(found)} messages in {DEADLINE_S} s"
    return found


def frame(message: dict[str, Any]) -> bytes:
    """Write a message without descriptors, as it goes over the wire."""
    text = json.dumps({**message, "fds": 0}).encode()
    return len(text).to_bytes(4, "little") + text


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    """Both ways, an empty one and one larger than any buffer of the kernel's included."""
    ours, theirs = pair
    messages: list[dict[str, Any]] = [{"kind": "a"}, {}, {"text": "é\n" * 100_000}, {"kind": "b", "n": [1, None, 0.1]}]

    def send_all() -> None:
        for message in messages:
            ours.send(message)

    sender = threading.Thread(target=send_all)
    sender.start()
    assert [message for message, _ in received(theirs, len(messages))] == messages
    sender.join(DEADLINE_S)
    theirs.send({"back": True})
    assert received(ours, 1) == [({"back": True}, [])]


def test_descriptors_travel_with_their_message(pair: tuple[Channel, Channel]) -> None:
    """Each message gets its own, in order, also when several messages arrive at once."""
    ours, theirs = pair
    files = [os.memfd_create(f"file-{i}") for i in range(3)]
    for i, fd in enumerate(files):
        os.write(fd, str(i).encode())
    ours.send({"n": 0}, (files[0],))
    ours.send({"n": "none"})
    ours.send({"n": 1}, (files[1], files[2]))
    arrived = received(theirs, 3)
    assert [message["n"] for message, _ in arrived] == [0, "none", 1]
    contents = [[os.pread(fd, 9, 0) for fd in fds] for _, fds in arrived]
    assert contents == [[b"0"], [], [b"1", b"2"]]
    for fd in (*files, *(fd for _, fds in arrived for fd in fds)):
        os.close(fd)


def test_a_message_that_arrives_in_pieces() -> None:
    """Byte by byte: nothing is handed out before the last one, and then the message as a whole."""
    raw, end = socket.socketpair()
    channel = Channel(end)
    data = frame({"kind": "slow", "text": "x" * 50}) + frame({"kind": "next"})
    whole = len(frame({"kind": "slow", "text": "x" * 50}))
    for i, byte in enumerate(data):
        raw.send(bytes([byte]))
        messages = channel.receive(0)
        assert [m["kind"] for m, _ in messages] == {whole - 1: ["slow"], len(data) - 1: ["next"]}.get(i, [])
    raw.close()
    channel.close()


def test_most_leaves_later_messages_for_the_next_call(pair: tuple[Channel, Channel]) -> None:
    """The keeper's first message is taken alone, whatever follows it at once."""
    ours, theirs = pair
    for n in range(3):
        ours.send({"n": n})
    assert [m["n"] for m, _ in theirs.receive(DEADLINE_S, most=1)] == [0]
    assert [m["n"] for m, _ in theirs.receive(DEADLINE_S, most=1)] == [1]
    ours.send({"n": 3})
    assert [m["n"] for m, _ in received(theirs, 1)] == [2]
    assert [m["n"] for m, _ in received(theirs, 1)] == [3]


def test_nothing_to_receive(pair: tuple[Channel, Channel]) -> None:
    """Without a message the call comes back empty, after its time."""
    assert pair[1].receive(0) == []
    assert pair[1].receive(0.01) == []


@pytest.mark.parametrize("unread", [False, True], ids=["all read", "something unread"])
def test_what_had_arrived_is_delivered_before_the_end_is_told(unread: bool) -> None:
    """A process that dies after its last message is heard to the end, even if it left something unread itself."""
    a, b = socket.socketpair()
    ours, theirs = Channel(a), Channel(b)
    if unread:
        theirs.send({"never": "read"})
    ours.send({"last": "word"})
    ours.close()
    assert theirs.receive(DEADLINE_S) == [({"last": "word"}, [])]
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            theirs.receive(DEADLINE_S)
    theirs.close()


def test_half_a_message_is_none() -> None:
    """A process that dies within a message has not said it."""
    raw, end = socket.socketpair()
    channel = Channel(end)
    raw.sendall(frame({"kind": "whole"}) + frame({"kind": "half"})[:-3])
    raw.close()
    assert [m["kind"] for m, _ in channel.receive(DEADLINE_S)] == ["whole"]
    with pytest.raises(ChannelClosed):
        channel.receive(DEADLINE_S)
    channel.close()


def test_sending_to_the_dead() -> None:
    """It is told as ChannelClosed, not as a signal or an OSError."""
    a, b = socket.socketpair()
    ours = Channel(a)
    b.close()
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            ours.send({"kind": "hello"})
    ours.close()


def test_sending_to_somebody_who_takes_nothing() -> None:
    """Rule 9: the wait has a deadline. Then the stream is cut within a message: it is closed for good, both ways."""
    a, b = socket.socketpair()
    ours, theirs = Channel(a, send_deadline_s=0.05), Channel(b)
    theirs.send({"said": "before"})
    with pytest.raises(ChannelClosed):
        ours.send({"text": "x" * 10_000_000})
    assert theirs.receive(0) == []
    with pytest.raises(ChannelClosed):
        ours.send({"text": "there is room now, but it would be taken for the rest of the last one"})
    assert ours.receive(0) == [({"said": "before"}, [])]
    with pytest.raises(ChannelClosed):
        ours.receive(0)
    ours.close()
    theirs.close()


def test_a_number_that_is_none_is_not_sent(pair: tuple[Channel, Channel]) -> None:
    """NaN is no JSON: the mistake shows where it is made, and the channel stays usable."""
    ours, theirs = pair
    with pytest.raises(ValueError, match="JSON"):
        ours.send({"x": float("nan")})
    ours.send({"kind": "fine"})
    assert received(theirs, 1) == [({"kind": "fine"}, [])]
