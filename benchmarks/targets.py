"""The targets, and whether they are reached. Pure: computed from the records, never written by hand."""

from collections.abc import Iterator
from dataclasses import dataclass

from .measure import Metric, Results, Spread

MIB = float(1 << 20)
HOLDFAST = "Holdfast"
REFERENCE = "torch.save in place"
KEEPS_UP = 0.9
"""A peer saves as often if it makes at least this share of Holdfast's saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One target at one size. `measured` is None where nothing was measured."""

    target: str
    size_mib: int | None
    measured: Spread | None
    bound: float
    unit: str
    note: str = ""

    @property
    def reached(self) -> bool:
        """Whether the median is within the bound."""
        return self.measured is not None and self.measured.median <= self.bound


def limit(name: str) -> Metric:
    """A limit of the machine."""
    return Metric("limits", "", name)


def save(name: str, contestant: str = HOLDFAST) -> Metric:
    """Something about one contestant's saves and loads."""
    return Metric("save", contestant, name)


def frozen(name: str) -> Metric:
    """Something about saves over a frozen base."""
    return Metric("frozen", HOLDFAST, name)


_RATIOS = (
    ("stall of a save ≤ 1.2 x copying the same bytes", save("stall_s"), limit("copy_memfd_s"), 1.2),
    ("time to durable ≤ 1.15 x raw write + fsync", save("durable_s"), limit("write_s"), 1.15),
    ("verified cold restore ≤ 1.15 x raw read", save("load_cold_s"), limit("read_cold_s"), 1.15),
    ("verified warm restore ≤ torch.load + load_state_dict", save("load_warm_s"), save("load_warm_s", REFERENCE), 1.0),
    ("frozen base: written ≤ 1.05 x changed bytes", frozen("written_bytes"), frozen("changed_bytes"), 1.05),
    ("frozen base: stall ≤ 2 x copying the changed bytes", frozen("stall_s"), frozen("copy_changed_s"), 2.0),
)
_STARTS = (
    ("import without torch ≤ 100 ms", "import_s", 100.0, "ms", 1e3),
    ("keeper ready ≤ 400 ms", "keeper_s", 400.0, "ms", 1e3),
    ("boundary with nothing to do ≤ 20 µs", "boundary_s", 20.0, "µs", 1e6),
)
_SPARE_MIB = 64.0


def verdicts(results: Results, slots: int) -> Iterator[Verdict]:
    """Judge every target; `slots` is the number of staging buffers in use."""
    for size in results.sizes:
        for target, over, under, bound in _RATIOS:
            measured = results.ratio(over, under, size)
            yield Verdict(target=target, size_mib=size, measured=measured, bound=bound, unit="x")
        yield from _memory(results, size, slots)
    for target, name, bound, unit, factor in _STARTS:
        found = results.spread(Metric("startup", HOLDFAST, name), None)
        yield Verdict(
            target=target, size_mib=None, measured=found.scaled(factor) if found else None, bound=bound, unit=unit
        )
    yield _training(results)


def slowdown(results: Results, contestant: str) -> Spread | None:
    """Per cent that training takes longer while this contestant saves."""
    found = results.ratio(Metric("train", contestant, "train_s"), Metric("train", "", "train_s"), None)
    return found.shifted(-1.0).scaled(100.0) if found else None


def keeping_up(results: Results) -> list[str]:
    """Peers that saved about as often as Holdfast."""
    return [
        name
        for name in results.contestants("train")
        if name not in ("", HOLDFAST) and (share := _share(results, name)) is not None and share >= KEEPS_UP
    ]


def _memory(results: Results, size: int, slots: int) -> Iterator[Verdict]:
    saving, state = results.spread(save("save_extra_bytes"), size), results.spread(save("state_bytes"), size)
    yield Verdict(
        target=f"memory while saving, above {slots} slots x state, ≤ 64 MiB",
        size_mib=size,
        measured=saving.shifted(-slots * state.median).scaled(1 / MIB) if saving and state else None,
        bound=_SPARE_MIB,
        unit="MiB",
    )
    for target, name in (
        ("memory while restoring into existing tensors ≤ 64 MiB", "load_extra_bytes"),
        ("memory while restoring into a new optimizer ≤ 64 MiB", "load_fresh_extra_bytes"),
    ):
        found = results.spread(save(name), size)
        measured = found.scaled(1 / MIB) if found else None
        yield Verdict(target=target, size_mib=size, measured=measured, bound=_SPARE_MIB, unit="MiB")


def _training(results: Results) -> Verdict:
    rivals = {name: found for name in keeping_up(results) if (found := slowdown(results, name)) is not None}
    best = min(rivals, key=lambda name: rivals[name].median) if rivals else None
    return Verdict(
        target="slowdown of training < every async peer that saves as often",
        size_mib=None,
        measured=slowdown(results, HOLDFAST),
        bound=rivals[best].median if best else float("inf"),
        unit="%",
        note=f"the least among peers: {best}" if best else "no async peer saved as often",
    )


def _share(results: Results, name: str) -> float | None:
    found = results.ratio(Metric("train", name, "saves"), Metric("train", HOLDFAST, "saves"), None)
    return found.median if found else None
