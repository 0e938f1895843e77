"""Draws rows of results: each row's ratio of Ottla's figure to Kafka's, and its goal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.table import Row

_MET, _MISSED, _WITHOUT = "#2c7a4b", "#b3372f", "#5b7a99"
_COLOURS = {"yes": _MET, "no": _MISSED}
_ROW_INCHES = 0.28


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Draws a bar for each row's ratio (to the right of 1 if Ottla's figure is the greater one), and a mark at its
    goal. Returns False if no row has a ratio."""
    rows = [row for row in rows if row.kafka and row.ratio > 0]
    if not rows:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 1.2 + _ROW_INCHES * len(rows)))
    places = range(len(rows) - 1, -1, -1)
    for place, row in zip(places, rows, strict=True):
        axes.barh(place, row.ratio - 1, left=1, height=0.6, color=_COLOURS.get(row.verdict, _WITHOUT))
        goal = row.judged_by
        if goal is not None and not goal.absolute:
            axes.plot(goal.bound, place, "k|", markersize=12)
        beside = (5, "left") if row.ratio >= 1 else (-5, "right")
        axes.annotate(
            f"{row.ratio:.2f}×", (row.ratio, place), (beside[0], 0),
            textcoords="offset points", ha=beside[1], va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(list(places), [f"{row.name} [{row.unit}]" for row in rows], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(min(0.05, *(row.ratio / 2 for row in rows)), max(8.0, *(row.ratio * 2 for row in rows)))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_title("Ottla's figure divided by Apache Kafka's; the mark is the goal (green: met)", fontsize=10)
    axes.grid(axis="x", which="both", alpha=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
