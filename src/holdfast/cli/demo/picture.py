"""The demo as one picture: two loss curves on top of each other, the kills, and the difference."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .kills import Kill

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#1b1f24"
_SOFT = "#6b7280"
_GRID = "#e5e7eb"
_UNDISTURBED = "#9ecbff"
_INTERRUPTED = "#0b2f5b"
_KILL = "#c62828"
_REPLAYED = "#f6b93b"
_SAME = "#2e7d32"
_MOST_NAMED = 8
"""More kills than these get numbers without names."""

_NAMES = {
    "both": "trainer\nand keeper",
    "trainer": "trainer\nalone",
    "save": "both, inside\na save",
    "keeper": "keeper\nalone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What is drawn. The losses of a step are at its number minus one."""

    undisturbed: Sequence[float]
    interrupted: Sequence[float]
    kills: Sequence[Kill]
    identical: bool
    verdict: str
    subject: str
    """What was trained on what, for the line under the title."""


def draw(curves: Curves, path: Path) -> None:
    """Write the picture as a PNG of 1920 x 1080 pixels."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    style = {"font.family": "DejaVu Sans", "font.size": 11, "axes.edgecolor": _SOFT, "text.color": _INK}
    with plt.rc_context({**style, "axes.labelcolor": _INK, "xtick.color": _SOFT, "ytick.color": _SOFT}):
        figure, (upper, lower) = plt.subplots(
            2, 1, figsize=(12.8, 7.2), dpi=150, sharex=True, height_ratios=[4.6, 1], gridspec_kw={"hspace": 0.09}
        )
        figure.subplots_adjust(left=0.07, right=0.975, top=0.795, bottom=0.09)
        _losses(upper, curves)
        _kills(upper, lower, curves)
        _difference(lower, curves)
        _title(figure, curves)
        figure.savefig(path)
        plt.close(figure)


def _losses(axes: "Axes", curves: Curves) -> None:
    steps = range(1, len(curves.undisturbed) + 1)
    axes.plot(steps, curves.undisturbed, color=_UNDISTURBED, linewidth=6, solid_capstyle="round", label="undisturbed")
    steps = range(1, len(curves.interrupted) + 1)
    label = f"killed {len(curves.kills)} times"
    axes.plot(steps, curves.interrupted, color=_INTERRUPTED, linewidth=1.2, label=label)
    axes.set_ylabel("training loss")
    axes.set_xlim(0, len(curves.undisturbed) + 1)
    _frame(axes)


def _kills(upper: "Axes", lower: "Axes", curves: Curves) -> None:
    shaded = False
    for kill in curves.kills:
        at = kill.strike.reached
        if kill.replayed > 0:
            for axes in (upper, lower):
                axes.axvspan(
                    kill.resumed_step,
                    at,
                    color=_REPLAYED,
                    alpha=0.3,
                    linewidth=0,
                    label=None if shaded else "replayed steps",
                )
                shaded = True
        for axes in (upper, lower):
            axes.axvline(at, color=_KILL, linewidth=1.2, linestyle=(0, (4, 2)), alpha=0.85)
        _marker(upper, kill, named=len(curves.kills) <= _MOST_NAMED)
    upper.legend(loc="center right", frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)


def _marker(axes: "Axes", kill: Kill, *, named: bool) -> None:
    """Put the kill's number in a disc on the upper edge, and who was killed above it."""
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center"}
    at = (kill.strike.reached, 1.0)
    disc = {"boxstyle": "circle,pad=0.28", "facecolor": _KILL, "edgecolor": "white", "linewidth": 1.5}
    axes.annotate(
        str(kill.strike.number), at, (0, 0), va="center", color="white", weight="bold", fontsize=10, bbox=disc, **place
    )
    if named:
        axes.annotate(_name(kill), at, (0, 14), va="bottom", color=_KILL, fontsize=9.5, linespacing=1.15, **place)


def _name(kill: Kill) -> str:
    if kill.strike.kind == "save" and kill.strike.save is None:
        return _NAMES["both"]
    return _NAMES[kill.strike.kind]


def _difference(axes: "Axes", curves: Curves) -> None:
    differences = [b - a for a, b in zip(curves.undisturbed, curves.interrupted, strict=False)]
    most = max((abs(difference) for difference in differences), default=0.0)
    color = _SAME if curves.identical else _KILL
    axes.plot(range(1, len(differences) + 1), differences, color=color, linewidth=2)
    reach = most * 1.4 if most else 1.0
    axes.set_ylim(-reach, reach)
    axes.set_yticks([0.0] if not most else [-most, 0.0, most])
    axes.set_ylabel("difference")
    axes.set_xlabel("optimizer step")
    axes.annotate(
        "exactly zero at every step" if not most else f"up to {most:.3g}",
        (0.012, 0.86), xycoords="axes fraction", va="top", color=color, fontsize=10.5, weight="bold",
    )  # fmt: skip
    _frame(axes)


def _title(figure: Any, curves: Curves) -> None:
    times = f"Killed {len(curves.kills)} times" if len(curves.kills) != 1 else "Killed once"
    title = (
        f"{times}, and still the same training, bit for bit" if curves.identical else f"{times}: NOT the same training"
    )
    figure.text(0.07, 0.955, title, fontsize=21, weight="bold", va="center", color=_INK if curves.identical else _KILL)
    figure.text(0.07, 0.908, f"{curves.subject}.  {curves.verdict}.", fontsize=11.5, va="center", color=_SOFT)


def _frame(axes: "Axes") -> None:
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=3)
