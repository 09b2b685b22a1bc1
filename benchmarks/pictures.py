"""The results as pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import targets
from .measure import Metric, Results, Spread
from .report import size_name
from .targets import HOLDFAST, limit, save

_INK = "#1b1f24"
_SOFT = "#6b7280"
_GRID = "#e5e7eb"
_OURS = ("#0b2f5b", "#9ecbff")
_THEIRS = ("#6b7280", "#d1d5db")
_LIMIT = "#c62828"


def draw(results: Results, folder: Path) -> list[Path]:
    """Write every picture; return where."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    style = {"font.family": "DejaVu Sans", "font.size": 10, "axes.edgecolor": _SOFT, "text.color": _INK}
    pictures: dict[str, Callable[[Any], Any]] = {
        "saving.png": lambda plot: _bars(
            plot, results, "Saving: stall (dark), time to durable (light)",
            (("stall_s", "copy_memfd_s", "copy to a warm buffer"), ("durable_s", "write_s", "raw write and fsync")),
        ),
        "loading.png": lambda plot: _bars(
            plot, results, "Loading: from the page cache (dark), from disk (light)",
            (("load_warm_s", "read_warm_s", "raw read, warm"), ("load_cold_s", "read_cold_s", "raw read, cold")),
        ),
        "training.png": lambda plot: _slowdown(plot, results),
    }  # fmt: skip
    for name, make in pictures.items():
        with plt.rc_context({**style, "axes.labelcolor": _INK, "xtick.color": _SOFT, "ytick.color": _INK}):
            figure = make(plt)
            figure.savefig(folder / name, dpi=130)
            plt.close(figure)
    return [folder / name for name in pictures]


def _bars(plot: Any, results: Results, title: str, pairs: Sequence[tuple[str, str, str]]) -> Any:
    """One panel per size; two bars per contestant, and a line at each limit."""
    names = results.contestants("save")
    sizes = results.sizes
    figure, panels = plot.subplots(1, len(sizes), figsize=(4.4 * len(sizes) + 3.4, 5.4), sharey=True, squeeze=False)
    for axes, size in zip(panels[0], sizes, strict=True):
        for number, (name, under, label) in enumerate(pairs):
            for place, contestant in enumerate(names):
                found = results.spread(save(name, contestant), size)
                if found:
                    colors = _OURS if contestant == HOLDFAST else _THEIRS
                    axes.barh(place + 0.2 - 0.4 * (1 - number), found.median, 0.38, color=colors[number])
                    _range(axes, found, place + 0.2 - 0.4 * (1 - number))
            bound = results.spread(limit(under), size)
            if bound:
                style = ("-", "--")[number]
                axes.axvline(bound.median, color=_LIMIT, linewidth=1.2, linestyle=style, label=f"limit: {label}")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(plot.NullFormatter())
        axes.set_title(size_name(size), fontsize=11)
        axes.set_xlabel("seconds")
        _frame(axes)
    first = panels[0][0]
    first.set_yticks(range(len(names)), names)
    first.invert_yaxis()
    figure.suptitle(title, fontsize=13, weight="bold", x=0.01, ha="left")
    figure.legend(*first.get_legend_handles_labels(), loc="lower right", frameon=False, ncols=2, fontsize=9)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure


def _slowdown(plot: Any, results: Results) -> Any:
    names = [name for name in results.contestants("train") if name]
    figure, axes = plot.subplots(figsize=(9.6, 0.6 * len(names) + 1.8))
    for place, name in enumerate(names):
        found = targets.slowdown(results, name)
        saves = results.spread(Metric("train", name, "saves"), None)
        if found and saves:
            axes.barh(place, found.median, 0.6, color=_OURS[0] if name == HOLDFAST else _THEIRS[0])
            _range(axes, found, place)
            axes.text(
                max(found.high, 0), place, f"  {found.median:.1f} %, {saves.median:g} saves", va="center", fontsize=9
            )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("per cent that training takes longer")
    axes.margins(x=0.25)
    axes.set_title("Training while saving all the time", fontsize=13, weight="bold", loc="left")
    _frame(axes)
    figure.tight_layout()
    return figure


def _range(axes: Any, found: Spread, place: float) -> None:
    axes.plot([found.low, found.high], [place, place], color=_INK, linewidth=1)


def _frame(axes: Any) -> None:
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
