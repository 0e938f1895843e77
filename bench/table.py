"""Rows of results: two medians, their ratio, the goal for the ratio (or for Ottla's own figure), and the verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for Ottla's value divided by Kafka's, or (`absolute`) for Ottla's value itself."""

    bound: float
    at_least: bool
    absolute: bool = False

    def met(self, value: float) -> bool:
        """Whether a ratio or a value keeps the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{'' if self.absolute else '×'}"


def at_least(ratio: float) -> Goal:
    """A goal for a ratio where more is better."""
    return Goal(ratio, True)


def at_most(ratio: float) -> Goal:
    """A goal for a ratio where less is better."""
    return Goal(ratio, False)


def within(value: float) -> Goal:
    """An upper bound for Ottla's value, whatever Kafka's is."""
    return Goal(value, False, absolute=True)


@dataclass(slots=True)
class Row:
    """One figure of both brokers: the value of each round, in `unit`.

    If the client was the bottleneck in most of Ottla's rounds, the row says so, and `goal_client_bound`, if there is
    one, replaces `goal`.
    """

    name: str
    unit: str
    goal: Goal | None
    ottla: list[float] = field(default_factory=list)
    kafka: list[float] = field(default_factory=list)
    note: str = ""
    goal_client_bound: Goal | None = None
    client_bound: list[bool] = field(default_factory=list)  # one entry for each of Ottla's rounds

    def add(self, broker: str, value: float, *, client_bound: bool = False) -> None:
        """Adds one round's value; `broker` is ottla or kafka."""
        if broker == "ottla":
            self.ottla.append(value)
            self.client_bound.append(client_bound)
        else:
            self.kafka.append(value)

    @property
    def bound_by_client(self) -> bool:
        """Whether the client was the bottleneck in most of Ottla's rounds."""
        return 2 * sum(self.client_bound) > len(self.client_bound)

    @property
    def judged_by(self) -> Goal | None:
        """The goal by which the verdict is found."""
        return self.goal_client_bound or self.goal if self.bound_by_client else self.goal

    @property
    def remark(self) -> str:
        """The note, or a remark that the client was the bottleneck."""
        return self.note or ("client-bound" if self.bound_by_client else "")

    @property
    def ratio(self) -> float:
        """Ottla's median divided by Kafka's; NaN if Kafka's is missing or 0."""
        return median(self.ottla) / median(self.kafka) if self.kafka and median(self.kafka) else float("nan")

    @property
    def verdict(self) -> str:
        """`yes` or `no`; a dash if the row has no goal."""
        goal = self.judged_by
        if goal is None:
            return "–"
        return "yes" if goal.met(median(self.ottla) if goal.absolute else self.ratio) else "no"

    def cells(self) -> tuple[str, ...]:
        """The row's cells in the table."""
        return (
            f"{self.name} [{self.unit}]",
            _figure(median(self.ottla)) if self.ottla else "–",
            _figure(median(self.kafka)) if self.kafka else "–",
            f"{self.ratio:.2f}×" if self.kafka else "–",
            str(self.judged_by or "–"),
            self.verdict,
            self.remark,
        )

    def record(self) -> dict[str, object]:
        """The row as JSON data."""
        ratio = self.ratio if self.kafka else None
        goal = str(self.judged_by or "")
        return asdict(self) | {"ratio": ratio, "goal": goal, "met": self.verdict, "note": self.remark}


HEADER = ("what", "Ottla", "Kafka", "ratio", "goal", "met", "")


def markdown(rows: list[Row]) -> str:
    """All rows as a table."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def _figure(value: float) -> str:
    if value >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
