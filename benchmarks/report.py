"""The tables of docs/benchmarks.md, computed from the records; what was written by hand around them stays."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from . import targets
from .measure import Metric, Results, Spread
from .targets import HOLDFAST, MIB, Verdict, limit, save

_SECTION = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class NoSuchSection(Exception):
    """The document and the generator do not have the same sections."""


def fill(document: str, sections: Mapping[str, str]) -> str:
    """Replace what stands between `<!-- measured: NAME -->` and `<!-- end -->`. Raises: NoSuchSection."""
    marked = [match[2] for match in _SECTION.finditer(document)]
    if sorted(marked) != sorted(sections):
        raise NoSuchSection(f"the document marks {sorted(marked)}; there are {sorted(sections)}")
    return _SECTION.sub(lambda match: f"{match[1]}\n{sections[match[2]].strip()}\n\n{match[3]}", document)


def sections(results: Results, about: Mapping[str, object], slots: int, beside: str) -> dict[str, str]:
    """Write every section; `beside` is the name of the samples' file and the pictures' folder, beside the document."""
    return {
        "machine": f"{_machine(about)}\n\nEvery sample is in [{beside}.json]({beside}.json).",
        "targets": _targets(list(targets.verdicts(results, slots)), results.sizes) + _failures(results),
        "limits": _limits(results),
        "saving": f"![Saving]({beside}/saving.png)\n\n{_per_size(results, _saving)}",
        "loading": f"![Loading]({beside}/loading.png)\n\n{_per_size(results, _loading)}",
        "frozen": _frozen(results),
        "training": f"![Training]({beside}/training.png)\n\n{_training(results)}",
        "startup": _startup(results),
    }


def seconds(value: float) -> str:
    """Write a time with three digits."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1 or unit == "µs":
            return f"{_digits(value * factor)} {unit}"
    return ""


def mebibytes(value: float) -> str:
    """Write a size in MiB."""
    return f"{_digits(value / MIB)} MiB"


def times(value: float) -> str:
    """Write a ratio."""
    return f"{value:.2f} x"


def spread(found: Spread | None, write: Callable[[float], str]) -> str:
    """Write a median and its range."""
    if found is None:
        return "-"
    return f"{write(found.median)} ({write(found.low)} … {write(found.high)})"


def size_name(mib: int) -> str:
    """Write a size as people say it."""
    return f"{mib / 1024:g} GB" if mib >= 1024 else f"{mib} MB"


def _machine(about: Mapping[str, object]) -> str:
    return "\n".join(f"* {name}: {value}" for name, value in about.items())


def _targets(verdicts: Sequence[Verdict], sizes: Sequence[int]) -> str:
    reached = sum(verdict.reached for verdict in verdicts)
    by_target: dict[str, dict[int | None, Verdict]] = {}
    for verdict in verdicts:
        by_target.setdefault(verdict.target, {})[verdict.size_mib] = verdict
    rows = [
        [target, *(_cell(found.get(size)) for size in sizes)]
        for target, found in by_target.items()
        if None not in found
    ]
    single = [[target, _cell(found[None]), found[None].note] for target, found in by_target.items() if None in found]
    return "\n\n".join(
        (
            f"{reached} of {len(verdicts)} reached. Each cell: the median over all rounds, and its range.",
            _table(["target", *map(size_name, sizes)], rows),
            _table(["target", "measured", ""], single),
        )
    )


def _cell(verdict: Verdict | None) -> str:
    if verdict is None or verdict.measured is None:
        return "not measured"
    word = "reached" if verdict.reached else "**not reached**"
    found = verdict.measured
    return f"{word}: {found.median:.2f} {verdict.unit} ({found.low:.2f} … {found.high:.2f})"


def _limits(results: Results) -> str:
    names = dict.fromkeys(
        name for record in results.records if record.kind == "limits" for name in record.values if name.endswith("_s")
    )
    rows = []
    for name in names:
        plain = name.removesuffix("_s").replace("_", " ")
        rows.append([plain, *(_rate(results, limit(name), size) for size in results.sizes)])
    return _table(["", *map(size_name, results.sizes)], rows)


def _rate(results: Results, metric: Metric, size: int) -> str:
    found, state = results.spread(metric, size), results.spread(limit("state_bytes"), size)
    if found is None or state is None:
        return "-"
    return f"{spread(found, seconds)}, {state.median / found.median / 1e9:.2f} GB/s"


def _per_size(results: Results, write: Callable[[Results, int], str]) -> str:
    return "\n\n".join(f"### {size_name(size)}\n\n{write(results, size)}" for size in results.sizes)


def _saving(results: Results, size: int) -> str:
    rows = [
        [
            name,
            spread(results.spread(save("first_stall_s", name), size), seconds),
            spread(results.spread(save("stall_s", name), size), seconds),
            _median(results.ratio(save("stall_s", name), limit("copy_memfd_s"), size), times),
            _median(results.ratio(save("stall_s", name), limit("copy_ordinary_s"), size), times),
            _median(results.spread(save("complete_s", name), size), seconds),
            spread(results.spread(save("durable_s", name), size), seconds),
            _median(results.ratio(save("durable_s", name), limit("write_s"), size), times),
            _median(results.spread(save("save_extra_bytes", name), size), mebibytes),
        ]
        for name in results.contestants("save")
    ]
    head = ["", "first stall", "later stalls", "x copy, memfd", "x copy, ordinary", "files complete", "durable"]
    return _table([*head, "x raw write", "extra memory"], rows)


def _loading(results: Results, size: int) -> str:
    rows = [
        [
            name,
            spread(results.spread(save("load_cold_s", name), size), seconds),
            _median(results.ratio(save("load_cold_s", name), limit("read_cold_s"), size), times),
            spread(results.spread(save("load_warm_s", name), size), seconds),
            _median(results.ratio(save("load_warm_s", name), limit("read_warm_s"), size), times),
            _median(results.spread(save("load_extra_bytes", name), size), mebibytes),
            _proof(results, "once", name),
            _proof(results, "flip", name),
        ]
        for name in results.contestants("save")
    ]
    head = ["", "cold", "x raw read", "warm", "x raw read", "extra memory", "syncs its files", "one flipped bit"]
    return _table(head, rows)


def _proof(results: Results, kind: str, name: str) -> str:
    found = [record for record in results.records if (record.kind, record.contestant) == (kind, name)]
    if not found:
        return "-"
    record = found[0]
    if kind == "once":
        return "not traced" if "syncs" not in record.values else "yes" if record.values["syncs"] else "**no**"
    return "refused" if record.error else "**loaded silently**"


def _frozen(results: Results) -> str:
    def metric(name: str) -> Metric:
        return Metric("frozen", HOLDFAST, name)

    rows = [
        [
            size_name(size),
            _median(results.spread(metric("changed_bytes"), size), mebibytes),
            _median(results.spread(metric("written_bytes"), size), mebibytes),
            spread(results.ratio(metric("written_bytes"), metric("changed_bytes"), size), times),
            spread(results.spread(metric("stall_s"), size), seconds),
            spread(results.ratio(metric("stall_s"), metric("copy_changed_s"), size), times),
        ]
        for size in results.sizes
    ]
    return _table(["state", "changed", "written by one save", "ratio", "stall", "x copying what changed"], rows)


def _training(results: Results) -> str:
    undisturbed = Metric("train", "", "train_s")
    rows = []
    for name in results.contestants("train"):
        saves = results.spread(Metric("train", name, "saves"), None)
        slower = targets.slowdown(results, name)
        whole = results.spread(undisturbed, None)
        lost = (
            slower.median / 100 * whole.median / saves.median if slower and whole and saves and saves.median else None
        )
        rows.append(
            [
                name or "without saving",
                spread(results.spread(Metric("train", name, "train_s"), None), seconds),
                spread(slower, lambda value: f"{value:.1f} %") if name else "-",
                _median(saves, lambda value: f"{value:g}"),
                seconds(lost) if lost and lost > 0 else "-",
            ]
        )
    steps = results.spread(Metric("train", "", "steps"), None)
    head = ["", f"{steps.median:g} steps" if steps else "", "slower by", "saves", "lost per save"]
    return _table(head, rows)


def _startup(results: Results) -> str:
    names = {"import_s": "`import holdfast`", "keeper_s": "keeper ready", "boundary_s": "a boundary, nothing to do"}
    rows = [
        [what, spread(results.spread(Metric("startup", HOLDFAST, name), None), seconds)] for name, what in names.items()
    ]
    return _table(["", "time"], rows)


def _failures(results: Results) -> str:
    failed = [record for record in results.records if record.error and record.kind != "flip"]
    return "".join(
        f"\n\nFailed: {record.kind} {record.contestant}, {size_name(record.size_mib)}, round {record.round + 1}: "
        f"{record.error}"
        for record in failed
    )


def _median(found: Spread | None, write: Callable[[float], str]) -> str:
    return write(found.median) if found else "-"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
