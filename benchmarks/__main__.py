"""Measure everything, then write `OUT.json`, the measured sections of `OUT.md`, and the pictures in `OUT/`.

Every measurement runs in a process of its own, on fresh files, one after the other; see docs/benchmarks.md.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import machine, pictures, proofs, report
from .child import Job
from .holdfast_runs import SLOTS
from .measure import Record, Results, there_and_back
from .peers import ASYNC, PEERS
from .targets import HOLDFAST

_DEADLINE_S = 900.0
_SMALL_MIB = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One measurement of one round."""

    kind: str
    contestant: str
    size_mib: int
    round: int


def main(words: Sequence[str] | None = None) -> int:
    """Run everything; returns the exit code."""
    args = _arguments(words)
    document = args.out.with_suffix(".md").read_text()
    if not args.report:
        args.folder.mkdir(parents=True, exist_ok=True)
        _write(args.out.with_suffix(".json"), _about(args), _measure(args))
    stored = json.loads(args.out.with_suffix(".json").read_text())
    results = Results([Record(**record) for record in stored["records"]])
    args.out.with_suffix(".md").write_text(
        report.fill(document, report.sections(results, stored["about"], SLOTS, args.out.name))
    )
    pictures.draw(results, args.out)
    return 1 if any(record.error for record in results.records if record.kind != "flip") else 0


def plan(sizes: Sequence[int], rounds: int) -> Iterator[Entry]:
    """List all measurements in their order."""
    everybody = [("limits", ""), ("save", HOLDFAST), ("frozen", HOLDFAST), *(("save", name) for name in PEERS)]
    for size in sizes:
        for number, (kind, name) in there_and_back(everybody, rounds):
            yield Entry(kind, name, size, number)
    loops = [("startup", HOLDFAST), ("train", ""), ("train", HOLDFAST), *(("train", name) for name in ASYNC)]
    for number, (kind, name) in there_and_back(loops, rounds):
        yield Entry(kind, name, _SMALL_MIB, number)
    for name in (HOLDFAST, *PEERS):
        yield Entry("once", name, _SMALL_MIB, 0)
        yield Entry("flip", name, _SMALL_MIB, 0)


def _measure(args: argparse.Namespace) -> list[Record]:
    entries = list(plan(args.sizes, args.rounds))
    records: list[Record] = []
    pace = 0.0
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns) as progress:
        task = progress.add_task("", total=len(entries))
        for entry in entries:
            what = f"{entry.kind} {entry.contestant}, {entry.size_mib} MiB, round {entry.round + 1}"
            progress.update(task, description=what)
            records.append(_one(entry, args, pace))
            if records[-1].error and entry.kind != "flip":
                progress.console.print(f"FAILED: {what}: {records[-1].error}")
            if (entry.kind, entry.contestant) == ("train", HOLDFAST) and not records[-1].error:
                pace = records[-1].values["saves"] / records[-1].values["steps"]
            progress.advance(task)
    return records


def _one(entry: Entry, args: argparse.Namespace, pace: float) -> Record:
    """Run one measurement in a process of its own, in an empty folder on the disk that is measured."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=args.folder))
    results = Path(tempfile.mkdtemp(prefix="result-", dir=args.folder))
    job = Job(
        kind=entry.kind,
        contestant=entry.contestant,
        size_mib=entry.size_mib,
        folder=str(folder),
        cold=args.cold,
        steps=args.steps,
        pace=pace,
    )
    log = results / "calls"
    traced = proofs.tracer(log) if entry.kind == "once" else None
    command = [*(traced or ()), sys.executable, "-m", "benchmarks.child", job.to_json(), str(results / "values.json")]
    try:
        error = _run(command)
        values: dict[str, Any] = {} if error else json.loads((results / "values.json").read_text())
        if traced and not error:
            values["syncs"] = proofs.calls(log)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(results, ignore_errors=True)
        os.sync()
    return Record(**asdict(entry), values=values, error=error)


def _run(command: Sequence[str]) -> str:
    """Run a measurement; return why it failed, or nothing."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            code = process.wait(_DEADLINE_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"took longer than {_DEADLINE_S:g} s"
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    return "" if code == 0 else f"exit code {code}: {lines[-1][:300] if lines else 'it said nothing'}"


def _about(args: argparse.Namespace) -> dict[str, object]:
    return {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        **machine.facts(args.folder),
        "cold means": {
            "drop": "the page cache was emptied; what lies under a virtual machine may still have the files",
            "advise": "the kernel was advised to forget the files; what lies below may still have them",
        }[args.cold],
        "rounds": args.rounds,
    }


def _write(path: Path, about: dict[str, object], records: Sequence[Record]) -> None:
    """Write the records, one a line."""
    lines = ",\n".join(json.dumps(asdict(record)) for record in records)
    path.write_text(f'{{"format": 1, "about": {json.dumps(about)}, "records": [\n{lines}\n]}}\n')


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=_sizes, default=[64, 512, 2048], help="of the state, in MiB: 64,512,2048")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="timed training steps")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks"), help="on the disk that is measured")
    parser.add_argument(
        "--cold", choices=("drop", "advise"), default=machine.way_to_cold(), help="how caches are emptied"
    )
    parser.add_argument("--report", action="store_true", help="only write the report again, from the stored figures")
    return parser.parse_args(words)


def _sizes(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
