"""One contestant's saves and loads, timed in a process of its own."""

import os
import time
from collections.abc import Callable

from . import machine, memory
from .contestants import Contestant
from .state import Trained

LATER_SAVES = 3
_LAST = LATER_SAVES + 2
"""The save after the timed ones, whose memory is watched."""
_KEPT = 2
_LOOK_SAVING_S = 0.02
_LOOK_LOADING_S = 0.002


class Wrong(Exception):
    """A load gave back something else than was saved."""


def measure(make: Callable[[], Contestant], state: Trained, way: str, *, fresh: bool) -> dict[str, float | list[float]]:
    """Save several times, load several times.

    With `fresh`, also load into an optimizer that has no moments yet, which is how a resume finds it.

    Raises: Wrong, whatever the contestant fails with.
    """
    before = memory.of_family()
    contestant = make()
    values = _saves(contestant, state)
    values["save_extra_bytes"] = _watched_save(contestant, state) - before
    contestant.close()
    saved = state.digest()

    def load(*, cold: bool = False, fresh: bool = False) -> float:
        state.forget()
        if fresh:
            state.optimizer.state.clear()
        if cold:
            machine.make_cold(contestant.place(_LAST), way)
        began = time.perf_counter()
        contestant.load(_LAST)
        taken = time.perf_counter() - began
        if state.digest() != saved:
            raise Wrong("what was loaded is not what was saved")
        return taken

    values["load_cold_s"] = load(cold=True)
    values["load_warm_s"] = load()
    values["load_extra_bytes"] = _extra(load)
    if fresh:
        values["load_fresh_s"] = load(fresh=True)
        values["load_fresh_extra_bytes"] = _extra(lambda: load(fresh=True))
    return values


def _extra(load: Callable[[], object]) -> float:
    """Bytes above what the state itself takes, before or after, at the peak of a load."""
    before = memory.at_rest()
    with memory.watched(memory.of_this_process, _LOOK_LOADING_S) as peak:
        load()
    return float(peak.nbytes - max(before, memory.at_rest()))


def _saves(contestant: Contestant, state: Trained) -> dict[str, float | list[float]]:
    """Time the first save and later ones."""
    contestant.prepare()
    first = _save(contestant, state, 1)
    later = [_save(contestant, state, number) for number in range(2, _LAST)]
    values: dict[str, float | list[float]] = {f"first_{name}": value for name, value in first.items()}
    return values | {name: [save[name] for save in later] for name in first}


def _watched_save(contestant: Contestant, state: Trained) -> float:
    """Save once more, and tell how many bytes this process and its descendants took at most."""
    with memory.watched(memory.of_family, _LOOK_SAVING_S) as peak:
        _save(contestant, state, _LAST)
    return float(peak.nbytes)


def _save(contestant: Contestant, state: Trained, number: int) -> dict[str, float]:
    state.advance()
    os.sync()
    began = time.perf_counter()
    pending = contestant.save(number)
    returned = time.perf_counter() - began
    with contestant.updating():
        stall = time.perf_counter() - began
    pending.wait()
    complete = time.perf_counter() - began
    place = contestant.place(number)
    machine.make_durable(place)
    durable = time.perf_counter() - began
    written = machine.bytes_at(place)
    if number > _KEPT:
        contestant.discard(number - _KEPT)
    return {
        "returned_s": returned,
        "stall_s": stall,
        "complete_s": complete,
        "durable_s": durable,
        "written_bytes": float(written),
    }
